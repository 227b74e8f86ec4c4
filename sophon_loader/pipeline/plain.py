"""Writes parameters as plain data without code, and reads them back.

Plain data is everything that msgpack writes by itself. Any other value is a map with the key "$"; for example, a tuple
is `{"$": "tuple", "items": [...]}`. Other modules add tags (`add_tag`) for further kinds of values, such as ops.

Nothing here needs torch, so an agent without torch can write an image's `info`. `torch_parameters.py` adds the values
of torch and torchvision.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.errors import PipelineError
from sophon_loader.wire.limits import MAX_DESCRIPTION_NBYTES

MAX_PLAIN_DEPTH = 32
"""Maximum nesting of lists and maps. Reading takes some five frames per level, of the 1000 on Python's stack."""
MAX_PLAIN_NBYTES = MAX_DESCRIPTION_NBYTES
"""Maximum bytes of one op's parameters (e.g. a tensor): those of a whole pipeline. A value counts for at least 8 bytes,
which bounds the objects that a few bytes of msgpack can make."""

_TAG = "$"
_NUMERIC_DTYPES = (
    *("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"),
    *("<f2", "<f4", "<f8", "<c8", "<c16"),
)
_NUMERIC = {text: np.dtype(text) for text in _NUMERIC_DTYPES}
_ENUMS: dict[str, type[enum.Enum]] = {"Resampling": Image.Resampling}
"""Enums whose members may be parameters; they are sent by name."""
_CLASSES: dict[str, type] = {"PIL.Image.Image": Image.Image}
"""Classes that may be parameters themselves."""

Writers = Mapping[str, Callable[[Any], dict[str, Any] | None]]
"""By tag: a function from a value to the plain fields of its tagged map; it returns None for another kind of value."""
_WRITERS: dict[str, Callable[[Any], dict[str, Any] | None]] = {}
KindWriter = Callable[[Any, Writers], dict[str, Any] | None]
"""Takes a value, and writers for the values in it. Returns plain fields of the tagged map; None for another kind of
value."""
_KINDS: dict[str, KindWriter] = {}


def add_enum(cls: type[enum.Enum]) -> None:
    """Let parameters hold the members of one more enum.

    Args:
        cls: the enum; its name is sent.
    """
    _ENUMS[cls.__name__] = cls


def add_class(name: str, cls: type) -> None:
    """Let a class be a parameter itself.

    Args:
        name: its name on the wire.
        cls: the class.
    """
    _CLASSES[name] = cls


def add_kind(tag: str, write: KindWriter, read: Callable[[dict[str, Any]], Any]) -> None:
    """Let plain data hold one more kind of value, with any `writers` of `to_plain`.

    Args:
        tag: its name on the wire.
        write: see `KindWriter`.
        read: see `add_reader`.
    """
    _KINDS[tag] = write
    add_reader(tag, read)


def add_tag(tag: str, write: Callable[[Any], dict[str, Any] | None], read: Callable[[dict[str, Any]], Any]) -> None:
    """Let parameters hold one more kind of value.

    Args:
        tag: its name on the wire.
        write: returns the plain fields of a value's tagged map; None for another kind of value.
        read: see `add_reader`.
    """
    _WRITERS[tag] = write
    add_reader(tag, read)


def add_reader(tag: str, read: Callable[[dict[str, Any]], Any]) -> None:
    """Let `from_plain` read a kind of value that `to_plain` writes only if it is given a writer.

    Args:
        tag: its name on the wire.
        read: returns the value of a tagged map. It may raise KeyError, TypeError, ValueError or AttributeError for
            fields that do not fit.
    """
    _READERS[tag] = read


def check_plain(value: Any) -> None:
    """Check that a value is a possible result of `to_plain`: bounded, and of plain types alone.

    Raises:
        PipelineError: another type, an int beyond 64 bits, or more than MAX_PLAIN_DEPTH or MAX_PLAIN_NBYTES.
    """
    nbytes = 0
    open_values = [(value, 1)]
    while open_values:
        value, depth = open_values.pop()
        nbytes += 8 + _leaf_nbytes(value)
        if depth > MAX_PLAIN_DEPTH or nbytes > MAX_PLAIN_NBYTES:
            raise PipelineError(
                f"parameters must be at most {MAX_PLAIN_NBYTES} bytes, {MAX_PLAIN_DEPTH} levels deep, got more"
            )
        if isinstance(value, dict):
            open_values += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            open_values += [(item, depth + 1) for item in value]


def _leaf_nbytes(value: Any) -> int:
    if type(value) is bytes:
        return len(value)
    if type(value) is str:
        try:
            return len(value.encode())
        except UnicodeEncodeError as error:
            raise PipelineError(f"text in parameters must be valid Unicode, got {value[:80]!r}") from error
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise PipelineError("integers in parameters must fit 64 bits")
    if type(value) not in (type(None), bool, int, float, list, dict):
        raise PipelineError(f"parameters must be plain data, got {type(value)}")
    return 0


def to_plain(value: Any, writers: Writers = _WRITERS) -> Any:
    """Return a value as msgpack can write it, with tags for the kinds that msgpack does not know.

    Args:
        value: any value.
        writers: writers for kinds of values that this module does not know.

    Raises:
        PipelineError: a kind of value that cannot be sent, e.g. a function.
    """
    if type(value) in (type(None), bool, int, float, str, bytes):  # exact: a subclass may behave differently
        return value
    if isinstance(value, enum.Enum):
        return _enum_to_plain(value)
    if isinstance(value, np.generic):
        return {_TAG: "scalar", **array_to_plain(np.asarray(value))}
    if type(value) is list:
        return [to_plain(item, writers) for item in value]
    if type(value) is tuple:
        return {_TAG: "tuple", "items": [to_plain(item, writers) for item in value]}
    if type(value) is dict:
        return {_TAG: "dict", "items": [[to_plain(one, writers) for one in pair] for pair in value.items()]}
    return _object_to_plain(value, writers)


def _enum_to_plain(value: enum.Enum) -> Any:
    name = type(value).__name__
    if _ENUMS.get(name) is not type(value):
        raise PipelineError(f"enum must be one of {sorted(_ENUMS)}, got {type(value)}")
    return {_TAG: "enum", "type": name, "member": value.name}


def _object_to_plain(value: Any, writers: Writers) -> Any:
    if type(value) is np.ndarray:
        return {_TAG: "ndarray", **array_to_plain(value)}
    for name, cls in _CLASSES.items():
        if value is cls:
            return {_TAG: "type", "name": name}
    for tag, write_kind in _KINDS.items():
        if (fields := write_kind(value, writers)) is not None:
            return {_TAG: tag, **fields}
    for tag, write in writers.items():
        fields = write(value)
        if fields is not None:
            return {_TAG: tag, **fields}
    raise PipelineError(f"parameter must be plain data or a registered op, got {value!r}")


def array_to_plain(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of the tagged map for an array.

    Args:
        array: array of any shape and a numeric dtype.

    Raises:
        PipelineError: another dtype, or more than MAX_PLAIN_NBYTES.
    """
    if array.dtype.str not in _NUMERIC or array.nbytes > MAX_PLAIN_NBYTES:
        raise PipelineError(f"array must be numeric and within {MAX_PLAIN_NBYTES} bytes, got {array.dtype}")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}


def from_plain(value: Any) -> Any:
    """Read what `to_plain` wrote.

    Raises:
        PipelineError: the value is not plain data, has an unknown tag, or fields that do not fit their tag.
    """
    check_plain(value)
    return read_checked(value)


def read_checked(value: Any) -> Any:
    """Run `from_plain` on a part of a value that `check_plain` has accepted.

    Raises:
        PipelineError: an unknown tag, or a tagged value whose fields do not fit.
    """
    if isinstance(value, list):
        return [read_checked(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    if not isinstance(tag, str) or tag not in _READERS:
        raise PipelineError(f"tag of a parameter must be one of {sorted(_READERS)}, got {reprlib.repr(tag)}")
    try:
        return _READERS[tag](value)
    except PipelineError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"parameter must be a well-formed {tag}, got {reprlib.repr(value)}") from error


def read_items(value: dict[str, Any]) -> list[Any]:
    """Return the values in the field `items` of a tagged map.

    Raises:
        PipelineError: the field is not a list, or see `read_checked`.
    """
    if not isinstance(value["items"], list):
        raise PipelineError(f"items of a parameter must be a list, got {type(value['items'])}")
    return [read_checked(item) for item in value["items"]]


def read_array(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Read what `array_to_plain` wrote, as a writeable array.

    Raises:
        PipelineError, KeyError, TypeError, ValueError: the fields do not fit.
    """
    dtype, shape = _NUMERIC[value["dtype"]], value["shape"]
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise PipelineError(f"shape of an array must be a list of sizes, got {reprlib.repr(shape)}")
    array: np.ndarray[Any, Any] = np.frombuffer(value["data"], dtype).reshape(shape).copy()
    return array


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda value: tuple(read_items(value)),
    "dict": lambda value: dict(read_items(value)),
    "enum": lambda value: _ENUMS[value["type"]][value["member"]],
    "ndarray": read_array,
    "scalar": lambda value: read_array(value)[()],
    "type": lambda value: _CLASSES[value["name"]],
}
