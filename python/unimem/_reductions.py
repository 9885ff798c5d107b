"""Sums and extremes of whole buffers."""

from __future__ import annotations

from typing import Any

from . import _unimem
from ._buffer import UnifiedBuffer
from ._devices import named
from ._elements import BufferSlice
from ._errors import invalid
from ._unimem import Device

_OPERATIONS = ("sum", "min", "max")


def reduce(buffer: UnifiedBuffer | BufferSlice, operation: str = "sum", *, device: Device | str | None = None) -> Any:
    """Joins all elements of a buffer or a slice of numbers: ``reduce(x)``, ``reduce(x, "max")``.

    On `device`, or on the one that lacks the least of them, the host among them; only the result comes back. "sum" gives an integer of 64 bits,
    which wraps around, or a float, made in double precision; "min" and "max" give one of the elements' dtype, NaN if one is. The order of a sum
    depends on the number of elements alone, so sums of floats are the same to the last bit on every device, but not always NumPy's. Of no
    elements the sum is 0, all else is InvalidArgument. UnsupportedOperation for a sum of floats on a device without double precision.
    """
    if not isinstance(buffer, (UnifiedBuffer, BufferSlice)):
        raise invalid("buffer", type(buffer).__name__, "a UnifiedBuffer or a BufferSlice")
    if operation not in _OPERATIONS:
        raise invalid("operation", operation, "sum, min or max")
    dtype = buffer.dtype
    smallest, largest = (4, 8) if dtype.kind == "f" else (1, 8)
    if dtype.kind not in "biuf" or not dtype.isnative or not smallest <= dtype.itemsize <= largest:
        raise invalid("buffer", f"one of {dtype}", "of integers, or floats of 32 or 64 bits, in the machine's byte order")
    result = _unimem._reduce(buffer, dtype.kind, _OPERATIONS.index(operation), named(device))
    return result if operation == "sum" else dtype.type(result)
