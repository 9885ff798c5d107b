"""Arguments as the C++ library takes them, checked here where Python's are wider: integers of any size, any dtype."""

from __future__ import annotations

import os
import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._errors import invalid, size_mismatch

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
ALL = 2**64 - 1
"""What C++ calls `all`: everything from the offset on."""

_LARGEST = 2**63 - 1
_ACCESSES = ["auto", "direct", "cached", "mapped"]


def count_of(name: str, value: object) -> int:
    """A number of elements or bytes, or an index of one: not negative, and within 63 bits."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(name, value, "an integer") from None
    if not 0 <= number <= _LARGEST:
        raise invalid(name, number, f"from 0 to {_LARGEST}")
    return number


def text_of(name: str, value: object) -> str:
    """Text that C++ can take."""
    if not isinstance(value, str):
        raise invalid(name, repr(value), "text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(name, ascii(value), "text that UTF-8 can say") from None
    return value


def path_of(name: str, path: AnyPath) -> str:
    """Of a file, as C++ takes it: what is behind a NUL would be left out there."""
    try:
        decoded = os.fsdecode(path)
    except TypeError:
        raise invalid(name, f"{type(path).__name__} {path!r}", "a path: text, bytes, or an os.PathLike of either") from None
    if "\0" in decoded:
        raise invalid(name, repr(decoded), "a path without NUL")
    return text_of(name, decoded)


_FILE_MODES = ["r", "c", "r+"]


def file_mode_of(mode: object) -> int:
    """The number in C++ of what `numpy.memmap` calls a mode."""
    if not isinstance(mode, str) or mode not in _FILE_MODES:
        raise invalid("mode", repr(mode), '"r", "c" or "r+"')
    return _FILE_MODES.index(mode)


def access_of(value: object) -> int:
    """The way bytes of a file come, as C++ numbers it."""
    if not isinstance(value, str) or value not in _ACCESSES:
        raise invalid("access", repr(value), '"auto", "direct", "cached" or "mapped"')
    return _ACCESSES.index(value)


def flag_of(name: str, value: object) -> bool:
    """True or False, and nothing that might be taken for one of them."""
    if not isinstance(value, (bool, np.bool_)):
        raise invalid(name, repr(value), "True or False")
    return bool(value)


def number_of(name: str, value: object) -> float:
    """A number that a double holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise invalid(name, repr(value), "a number")
    try:
        return float(value)
    except OverflowError:
        raise invalid(name, value, "within what a double holds") from None


def priority_of(value: object) -> int:
    """What 32 bits hold."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise invalid("priority", repr(value), "an integer") from None
    if not -(2**31) <= number < 2**31:
        raise invalid("priority", number, f"from {-(2**31)} to {2**31 - 1}")
    return number


def size_of(name: str, value: object) -> int:
    """A number of bytes, or text that says one: "64MiB"."""
    return _unimem.parse_size(value) if isinstance(value, str) else count_of(name, value)


def optional_size(name: str, value: object) -> int:
    return ALL if value is None else size_of(name, value)


def optional_count(name: str, value: object) -> int:
    return ALL if value is None else count_of(name, value)


def shape_of(shape: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    """A shape as NumPy takes it, and no more elements than 63 bits count."""
    if isinstance(shape, (str, bytes)):
        raise invalid("shape", repr(shape), "an integer or a sequence of integers")
    if isinstance(shape, Iterable) and getattr(shape, "ndim", 1) != 0:
        extents = [count_of("shape", extent) for extent in shape]
    else:
        extents = [count_of("shape", shape)]
    if len(extents) > 64:
        raise invalid("shape", f"{len(extents)} dimensions", "at most 64")
    elements = 1
    for extent in extents:
        elements *= extent
    if elements > _LARGEST:
        raise invalid("shape", tuple(extents), f"of at most {_LARGEST} elements")
    return extents


def dtype_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A dtype whose items are plain bytes, which may travel to a device and back."""
    try:
        result = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise invalid("dtype", dtype, f"a NumPy dtype ({error})") from None
    if result.hasobject:
        raise invalid("dtype", result, "of plain bytes: references to Python objects mean nothing on a device")
    if result.subdtype is not None:
        raise invalid("dtype", result, "of single elements: extents of a subarray belong into the shape")
    if result.itemsize == 0:
        raise invalid("dtype", result, "of at least one byte")
    return result


def elements_of(data: npt.ArrayLike, dtype: np.dtype[Any], what: str, shape: tuple[int, ...] | None, count: int) -> np.ndarray:
    """`data` as a C-contiguous array of `dtype`, with nothing broadcast and no cast but those of NumPy's `same_kind`.

    `shape` None: as many elements as `data` has, at most `count`.
    """
    try:
        array = np.asarray(data)
    except ValueError as error:  # ragged nesting
        raise invalid(what, type(data).__name__, f"an array ({error})") from None
    if array.dtype.hasobject:
        raise invalid(what, f"array of dtype {array.dtype}", f"elements of {dtype}, not Python objects")
    if shape is None:
        if array.size > count:
            raise size_mismatch(what, count, array.size)
    else:
        if array.size != count:
            raise size_mismatch(what, count, array.size)
        if array.shape != shape:
            raise invalid(what, f"array of shape {array.shape}", f"of shape {shape}: nothing is reshaped in silence")
    if not hasattr(data, "dtype") and array.dtype.kind == "i" and dtype.kind == "u":
        # Python's integers have no sign of their own: they are taken where each fits.
        try:
            return np.array(data, dtype=dtype, order="C")
        except OverflowError as error:
            raise invalid(what, type(data).__name__, f"elements of {dtype} ({error})") from None
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise invalid(what, f"array of dtype {array.dtype}", f"castable to {dtype} by NumPy's 'same_kind'")
    # Adds no dimension to a scalar, as np.ascontiguousarray does.
    return np.asarray(array, dtype=dtype, order="C")


_KINDS = "biufc"


def value_of(value: object, dtype: np.dtype[Any]) -> bytes:
    """One element, as its bytes."""
    if dtype.names is not None and isinstance(value, tuple):  # as NumPy writes a structured element
        try:
            return np.array(value, dtype=dtype).tobytes()
        except (OverflowError, TypeError, ValueError) as error:
            raise invalid("value", repr(value), f"an element of {dtype} ({error})") from None
    array = np.asarray(value)
    if array.ndim != 0:
        raise invalid("value", f"array of shape {array.shape}", "a single element")
    given, wanted = array.dtype.kind, dtype.kind
    if isinstance(value, (bool, int, float, complex)) and given in _KINDS and wanted in _KINDS:
        fits = _KINDS.index("i" if given == "u" else given) <= _KINDS.index("f" if wanted == "f" else "u" if wanted in "iu" else wanted)
    elif array.dtype.hasobject:
        fits = isinstance(value, int) and wanted in "fc"
    else:
        fits = array.dtype == dtype or np.can_cast(array.dtype, dtype, "same_kind") or bool(dtype.names)
    if not fits:
        raise invalid("value", repr(value), f"an element of {dtype}")
    try:
        return np.array(value, dtype=dtype).tobytes()
    except (OverflowError, TypeError, ValueError) as error:
        raise invalid("value", repr(value), f"an element of {dtype} ({error})") from None
