"""Sums and extremes of whole buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _unimem
from ._buffer import UnifiedBuffer
from ._devices import named
from ._elements import BufferSlice
from ._errors import invalid
from ._unimem import Device, Event

_OPERATIONS = ("sum", "min", "max")


def reduce(buffer: UnifiedBuffer | BufferSlice, operation: str = "sum", *, device: Device | str | None = None) -> Any:
    """Joins all elements of a buffer or a slice of numbers: ``reduce(x)``, ``reduce(x, "max")``.

    On `device`, or on the one that lacks the least of them, the host among them; only the result comes back. "sum" gives an integer of 64 bits,
    which wraps around, or a float, made in double precision; "min" and "max" give one of the elements' dtype, NaN if one is. The order of a sum
    depends on the number of elements alone, so sums of floats are the same to the last bit on every device, but not always NumPy's. Of no
    elements the sum is 0, all else is InvalidArgument. UnsupportedOperation for a sum of floats on a device without double precision.
    """
    result = _unimem._reduce(buffer, *_checked(buffer, operation), named(device))
    return result if operation == "sum" else buffer.dtype.type(result)


def reduce_into(
    out: UnifiedBuffer | BufferSlice, buffer: UnifiedBuffer | BufferSlice, operation: str = "sum", *, device: Device | str | None = None
) -> Event:
    """As `reduce`, without waiting: puts the result into `out`, of one element (SizeMismatch), and nothing comes to the host.

    Its dtype is the buffer's for "min" and "max"; for "sum" int64, uint64 (of unsigned and bool) or float64, else InvalidArgument.
    """
    kind, number = _checked(buffer, operation)
    wanted = buffer.dtype if operation != "sum" else np.dtype({"i": "i8", "f": "f8"}.get(kind, "u8"))
    if not isinstance(out, (UnifiedBuffer, BufferSlice)) or out.dtype != wanted:
        raise invalid("out", getattr(out, "dtype", type(out).__name__), f"a buffer or slice of {wanted}")
    return _unimem._reduce_into(out, buffer, kind, number, named(device))


def _checked(buffer: UnifiedBuffer | BufferSlice, operation: str) -> tuple[str, int]:
    """NumPy's letter for the elements, and the operation as C++ takes it."""
    if not isinstance(buffer, (UnifiedBuffer, BufferSlice)):
        raise invalid("buffer", type(buffer).__name__, "a UnifiedBuffer or a BufferSlice")
    if operation not in _OPERATIONS:
        raise invalid("operation", operation, "sum, min or max")
    dtype = buffer.dtype
    smallest, largest = (4, 8) if dtype.kind == "f" else (1, 8)
    if dtype.kind not in "biuf" or not dtype.isnative or not smallest <= dtype.itemsize <= largest:
        raise invalid("buffer", f"one of {dtype}", "of integers, or floats of 32 or 64 bits, in the machine's byte order")
    return dtype.kind, _OPERATIONS.index(operation)
