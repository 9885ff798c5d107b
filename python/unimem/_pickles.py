"""What copies and pickles of buffers keep: the data by value, what the buffer is asked to be, and what a subclass has added."""

from __future__ import annotations

import copyreg
import logging
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _unimem
from ._devices import chosen
from ._enums import BufferState, Location, Tracking
from ._errors import NotFound, OutOfMemory
from ._host import HostArray
from ._unimem import Device, device

if TYPE_CHECKING:
    from ._buffer import UnifiedBuffer
    from ._elements import Elements

_TRACKING, _LOCATIONS = list(Tracking), list(Location)

# A frame that goes before that of the data. Dask receives the first frame of a message together with what stands before it, in one piece of memory: the
# data would lie there at any address, and would have to be copied. From this many bytes on that costs more than a frame.
_SPACER, _SPACED_BYTES = bytearray(1), 64 << 10


def attributes_of(buffer: Elements) -> Any:
    """As ``object.__getstate__`` has it from Python 3.11 on: a dictionary, with slots a pair, or None."""
    if not isinstance(buffer, _kind_of(buffer)):
        return None  # a slice's copies are no slices
    attributes = getattr(buffer, "__dict__", None) or None
    slots = {name: getattr(buffer, name) for name in copyreg._slotnames(type(buffer)) if hasattr(buffer, name)}  # type: ignore[attr-defined]
    return (attributes, slots) if slots else attributes


def _kind_of(buffer: Elements) -> type[UnifiedBuffer]:
    """Of a slice it is a buffer of its own."""
    from ._buffer import UnifiedBuffer

    return type(buffer) if isinstance(buffer, UnifiedBuffer) else UnifiedBuffer


def cloned(buffer: Elements) -> UnifiedBuffer:
    """Without the attributes. The contents are copied along the nearest path."""
    kind = _kind_of(buffer)
    result = kind.__new__(kind)
    _unimem.Window.__init__(result, buffer)
    if buffer.state is not BufferState.UNINITIALIZED:
        if buffer._options()[2]:  # strict
            result.allocate(True, False)
        _unimem._copy(buffer, result)
    return result


def give_attributes(result: UnifiedBuffer, attributes: Any) -> UnifiedBuffer:
    """As pickle gives them to what it has made."""
    if attributes is not None and hasattr(result, "__setstate__"):
        result.__setstate__(attributes)
    elif attributes is not None:
        for some in attributes if isinstance(attributes, tuple) else (attributes,):
            for name, value in (some or {}).items():
                setattr(result, name, value)
    return result


def asked_of(buffer: Elements) -> tuple[Any, ...]:
    """What the buffer is asked to be."""
    tracking, pinned, strict, priority, location, on = buffer._options()
    return (None if on is None else on.id, tracking, pinned, strict, priority, location, buffer.name)


def takes_memory_of_its_own(asked: tuple[Any, ...]) -> bool:
    """Whether such a buffer cannot stand on memory that has arrived."""
    _, tracking, pinned, _, _, location, *_ = asked
    return bool(pinned) or _TRACKING[tracking] is Tracking.PAGES or _LOCATIONS[location] not in (Location.HOST, Location.DEVICE)


def reduced(buffer: Elements, protocol: int) -> tuple[Any, ...]:
    """The data is an array over the host side under a read lease, which protocol 5 hands over out of band, if it is asked to, and
    without a copy."""
    data = None if buffer.state is BufferState.UNINITIALIZED else _data_of(buffer)
    kind = _kind_of(buffer)
    spacer = (PickleBuffer(_SPACER),) if data is not None and protocol >= 5 and data.nbytes >= _SPACED_BYTES else ()
    asked = (*asked_of(buffer), *spacer)
    attributes = buffer.__getstate__()
    return (unpickled, (kind, buffer.shape, buffer.dtype, asked, data), *(() if attributes is None else (attributes,)))


def _data_of(buffer: Elements) -> np.ndarray:
    try:
        return buffer.host.view(np.ndarray)
    except OutOfMemory:
        return buffer.to_numpy()  # straight from a file or a device, by no memory of the manager's


def lies_in_a_buffer(array: np.ndarray) -> bool:
    """Whether an array shows memory of a buffer's, by way of whatever views."""
    holder: Any = array
    while holder is not None:
        if isinstance(holder, (_unimem.HostHold, _unimem.WriteLease, _unimem.Window)):
            return True
        if isinstance(holder, PickleBuffer):
            holder = memoryview(holder)
        holder = holder.obj if isinstance(holder, memoryview) else getattr(holder, "base", None)
    return False


def _device_or_none(id: str | None) -> Device | None:
    """A device of this process; without it, the default one: what was sent is the data."""
    if id is None:
        return None
    try:
        return device(id)
    except NotFound:
        logging.getLogger("unimem").info("a buffer that was pickled on '%s' is loaded for the default device: there is no such device here", id)
        return None


def unpickled(
    kind: type[UnifiedBuffer], shape: tuple[int, ...], dtype: np.dtype[Any],
    asked: tuple[Any, ...], data: np.ndarray | None,
) -> UnifiedBuffer:  # fmt: skip
    """A buffer over the memory that has arrived, where the options let it be so: locked and watched memory is the library's own, and
    what is read-only, crooked, or another buffer's is copied."""
    id, tracking, pinned, strict, priority, location, name = asked[:7]
    on = _device_or_none(id) or chosen(None)
    buffer = kind.__new__(kind)
    own = takes_memory_of_its_own(asked)
    flags = None if data is None else data.flags
    if data is not None and flags is not None and not own and flags.writeable and flags.c_contiguous and flags.aligned and not lies_in_a_buffer(data):
        _unimem.Window.__init__(buffer, data.view(np.ndarray), None, on, location, tracking, strict, name, priority)
        if data.size:
            buffer.mark_host_dirty()
        return buffer
    _unimem.Window.__init__(buffer, list(shape), dtype, None, on, location, tracking, pinned, strict, name, priority)
    if data is not None:
        buffer.allocate(True, False)
        buffer.copy_from(data)
    return buffer
