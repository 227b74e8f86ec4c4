"""Which of a library's functions stand in this process as the library ships them, and which a program has replaced.

A function is taken for the shipped one if its code was compiled from the file of its module, under its own name:
`functools.wraps` copies a function's name, but not its code. Only what fails that is compared with the module's own
code, as the module's loader reads it from the disk.

Not looked at: properties (fastai replaces `Image.size`, by one with the same numbers), and what the module itself does
not name, because who adds a function to a library replaces nothing.
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
    """A module, or the body of a class, as it was written.

    Args:
        functions: name -> the code of each function of that name.
        names: that it binds or reads, imported ones too.
    """

    functions: dict[str, list[types.CodeType]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Written:
    """A module as it was written.

    Args:
        scopes: of the module (""), and of each class in it by name.
        named: all names that its code mentions, functions included.
    """

    scopes: dict[str, _Scope]
    named: frozenset[str]


class _Look:
    """What was found in a module, and the objects in it at that moment, which it keeps from being made anew."""

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
        """Whether all is as it was."""
        return module is self._module and self._now() == self._identities


_LOOKS: dict[str, _Look] = {}
_STAND_IN = "_sophon_stand_in"


def replaced_in(module: types.ModuleType) -> Sequence[tuple[str, Any]]:
    """What does not stand in a module as it was written: "pil_loader" or "Resize.forward", and what stands there.

    Args:
        module: of a library; about one without readable code nothing is said.
    """
    look = _LOOKS.get(module.__name__)
    if look is None or not look.holds(module):
        look = _LOOKS[module.__name__] = _Look(module)
    return look.replaced


def mark_stand_in(stand_in: Any, before: Any) -> None:
    """Say that a function does what another one does, so that it counts as that one here.

    Args:
        stand_in: put in the other one's place for a while, by this package.
        before: the other one.
    """
    if isinstance(stand_in, types.FunctionType):
        setattr(stand_in, _STAND_IN, (stand_in, before))  # a copy of the attribute on another function says nothing


def _stood_in_for(value: Any) -> Any:
    """The function that a marked stand-in was put in the place of; anything else itself."""
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
    """The function of a static or class method; anything else itself."""
    return held.__func__ if isinstance(held, (staticmethod, classmethod)) else held


def name_of(value: Any) -> str:
    """What to call a function, with its module: "mylab.patches.read"."""
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
    """What can be told at a glance: a function of this file under its own name, no function, or another library's."""
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
    # Imported. One of the library's own must be of that name, unless it was made by a function of the library.
    if cls is None and isinstance(value, types.FunctionType) and value.__name__ not in scope.names:
        return "<locals>" in value.__qualname__ and _is_of(module, _module_of(value), ())
    return _is_of(module, _module_of(value), written.scopes[""].names)


def _is_one_of(module: types.ModuleType, value: Any, codes: list[types.CodeType]) -> bool:
    """Whether a value is a function with one of these codes, or the library or Python has wrapped such a one."""
    while True:
        if getattr(value, "__code__", None) in codes:
            return True
        inner = getattr(value, "__wrapped__", None)
        if inner is None or not _is_of(module, _module_of(value), ()):
            return False
        value = inner


def _overrides(cls: type | None, name: str) -> bool:
    """Whether a method that was added to a class takes the place of another one."""
    return cls is not None and (name == "__getitems__" or any(name in vars(base) for base in cls.__mro__[1:]))


def _is_of(module: types.ModuleType, other: str, names: Any) -> bool:
    """Whether a module belongs to the same library, to Python, or to what a module's code imports."""
    root = other.partition(".")[0]
    if root == module.__name__.partition(".")[0] or root in sys.stdlib_module_names or root.startswith("namedtuple_"):
        return True
    return root in ("torch", "numpy") or root in {name.partition(".")[0] for name in names}


def _module_of(value: Any) -> str:
    """Where something is from; of a function by its globals, which `functools.wraps` does not change."""
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
    """A module as it was written; None if its loader does not tell."""
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
            if constant.co_name.startswith("<generic parameters"):  # what has type parameters is made in there
                yield from _inner_codes(constant)


def names_in(code: types.CodeType) -> set[str]:
    """All names that a code mentions, and those that are defined in it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found
