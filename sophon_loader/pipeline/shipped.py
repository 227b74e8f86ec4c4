"""Finds the functions of a library that a program has replaced in this process.

A function counts as the library's own if its code was compiled from its module's file, under its own name:
`functools.wraps` copies a function's name, but not its code. Only functions that fail this are compared with the
module's code, which the module's loader reads from disk.

Properties are not checked (fastai replaces `Image.size` by one with the same numbers), nor are names that the module
itself does not mention, because a function added to a library replaces nothing.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any

_IS_FUNCTION = 0x1
"""`inspect.CO_OPTIMIZED`, which the code of a class's body does not have."""


@dataclass(frozen=True)
class _Scope:
    """A module or a class's body, as written in its file.

    Args:
        functions: code of each function, by name.
        names: names that it binds or reads, imports included.
    """

    functions: dict[str, list[types.CodeType]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Written:
    """A module as written in its file.

    Args:
        scopes: scope of the module (""), and of each class in it by name.
        named: all names in its code, functions included.
    """

    scopes: dict[str, _Scope]
    named: frozenset[str]


class _Look:
    """The replacements in a module. Keeps the objects in it at that moment, to notice later changes without a new
    search."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        classes = [value for value in list(vars(module).values()) if _is_class_of(module, value)]
        self._spaces = [vars(module), *map(vars, classes)]
        self._held = [value for space in self._spaces for value in list(space.values())]
        self._functions = [inner for inner in map(_inner_function, self._held) if isinstance(inner, types.FunctionType)]
        self._identities = self._now()
        self.replaced = list(_replaced_in(module))

    def _now(self) -> list[int]:
        held = chain.from_iterable(list(space.values()) for space in self._spaces)
        return [*map(id, held), *map(id, map(attrgetter("__code__"), self._functions))]

    def holds(self, module: types.ModuleType) -> bool:
        """Return True if nothing has changed."""
        return module is self._module and self._now() == self._identities


_LOOKS: dict[str, _Look] = {}
_STAND_IN = "_sophon_stand_in"


def replaced_in(module: types.ModuleType) -> Sequence[tuple[str, Any]]:
    """Return (name, replacement) of everything in a module that differs from its file: "pil_loader", "Resize.forward".

    Args:
        module: module of a library; gives nothing if its code cannot be read.
    """
    look = _LOOKS.get(module.__name__)
    if look is None or not look.holds(module):
        look = _LOOKS[module.__name__] = _Look(module)
    return look.replaced


def mark_stand_in(stand_in: Any, before: Any) -> None:
    """Mark a function as doing the same as another one, so that it does not count as a replacement.

    Args:
        stand_in: put in the other one's place for a while by this package.
        before: the other function.
    """
    if isinstance(stand_in, types.FunctionType):
        setattr(stand_in, _STAND_IN, (stand_in, before))  # a copy of the attribute on another function must not count


def _stood_in_for(value: Any) -> Any:
    """Return the function that a marked substitute replaces; any other value itself."""
    mark = vars(value).get(_STAND_IN) if type(value) is types.FunctionType else None
    return mark[1] if mark is not None and mark[0] is value else value


def _replaced_in(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    file = getattr(module, "__file__", None)
    for name, held in list(vars(module).items()):
        value = _stood_in_for(held)
        if _is_class_of(module, value):
            yield from _replaced_in_class(module, value, file)
        elif not _is_usual(module, name, name, value, file) and not _as_written(module, None, name, value):
            yield name, value


def _is_class_of(module: types.ModuleType, value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _inner_function(held: Any) -> Any:
    """Return the function of a static or class method; any other value itself."""
    return held.__func__ if isinstance(held, (staticmethod, classmethod)) else held


def name_of(value: Any) -> str:
    """Return a function's name with its module: "mylab.patches.read"."""
    inner = value.func if isinstance(value, partial) else _inner_function(value)
    code = getattr(inner, "__code__", None)
    if code is None:
        return f"{type(inner).__module__}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    return f"{_module_of(inner)}.{getattr(code, 'co_qualname', code.co_name)}"


def _replaced_in_class(module: types.ModuleType, cls: type, file: str | None) -> Iterator[tuple[str, Any]]:
    for name, held in list(vars(cls).items()):
        value = _stood_in_for(_inner_function(held))
        full = f"{cls.__qualname__}.{name}"
        if isinstance(held, (type, property)) or _is_usual(module, name, full, value, file):
            continue
        if not _as_written(module, cls, name, value):
            yield full, value


def _is_usual(module: types.ModuleType, name: str, full: str, value: Any, file: str | None) -> bool:
    """True if a quick look suffices: a function of this file under its own name, a class or module of the library, or
    no function."""
    if type(value) is types.FunctionType:
        code = value.__code__
        return code.co_name == name and code.co_filename == file and value.__qualname__ == full
    if isinstance(value, (type, types.ModuleType)):
        return _is_of(module, _module_of(value), ())
    return not callable(value) or type(value).__module__ in ("builtins", "typing")


def _as_written(module: types.ModuleType, cls: type | None, name: str, value: Any) -> bool:
    written = _written(module.__name__)
    if written is None:
        return True
    scope = written.scopes.get("" if cls is None else cls.__name__, _Scope())
    if name in scope.functions:
        return _is_one_of(module, value, scope.functions[name])
    if name not in (written.named if cls is None else scope.names) and not _overrides(cls, name):
        return True
    # Imported. A function must have its own name, unless one of the library's functions made it.
    if cls is None and isinstance(value, types.FunctionType) and value.__name__ not in scope.names:
        return "<locals>" in value.__qualname__ and _is_of(module, _module_of(value), ())
    return _is_of(module, _module_of(value), written.scopes[""].names)


def _is_one_of(module: types.ModuleType, value: Any, codes: list[types.CodeType]) -> bool:
    """True if a value is a function with one of these codes, or a wrapper of one by the library or Python."""
    while True:
        if getattr(value, "__code__", None) in codes:
            return True
        inner = getattr(value, "__wrapped__", None)
        if inner is None or not _is_of(module, _module_of(value), ()):
            return False
        value = inner


def _overrides(cls: type | None, name: str) -> bool:
    """True if a method that was added to a class overrides another one."""
    return cls is not None and (name == "__getitems__" or any(name in vars(base) for base in cls.__mro__[1:]))


def _is_of(module: types.ModuleType, other: str, names: Any) -> bool:
    """True if a module belongs to the same library, to Python, or to the imports of a module's code."""
    root = other.partition(".")[0]
    if root == module.__name__.partition(".")[0] or root in sys.stdlib_module_names or root.startswith("namedtuple_"):
        return True
    return root in ("torch", "numpy") or root in {name.partition(".")[0] for name in names}


def _module_of(value: Any) -> str:
    """Return a value's module; a function's by its globals, which `functools.wraps` does not change."""
    if isinstance(value, partial):
        return _module_of(value.func)
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__", ""))
    if isinstance(value, types.ModuleType):
        return value.__name__
    cls = value if isinstance(value, type) else type(value)
    return str(cls.__module__)


@cache
def _written(name: str) -> _Written | None:
    """Return a module as written in its file; None if its loader does not give its code."""
    spec = getattr(sys.modules[name], "__spec__", None)
    read = getattr(getattr(spec, "loader", None), "get_code", None)
    try:
        code = None if read is None else read(name)
    except (ImportError, OSError, SyntaxError):
        return None
    if code is None:
        return None
    scopes: dict[str, _Scope] = {}
    _read_scope(code, "", scopes)
    return _Written(scopes, frozenset(names_in(code)))


def _read_scope(code: types.CodeType, name: str, scopes: dict[str, _Scope]) -> None:
    scope = scopes.setdefault(name, _Scope())
    scope.names.update(code.co_names)
    for inner in _inner_codes(code):
        if inner.co_flags & _IS_FUNCTION:
            scope.functions.setdefault(inner.co_name, []).append(inner)
        else:
            _read_scope(inner, inner.co_name, scopes)


def _inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            if constant.co_name.startswith("<generic parameters"):  # code with type parameters is made in there
                yield from _inner_codes(constant)


def names_in(code: types.CodeType) -> set[str]:
    """Return all names that a code mentions, those defined in it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found
