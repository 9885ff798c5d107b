"""What a buffer and a part of one have in common, and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import count_of, dtype_of, elements_of, optional_count, shape_of, value_of
from ._blocks import BufferBlock, copy_blocks
from ._devices import named
from ._enums import Advice, BufferState, MapMode, Tracking, number_in
from ._errors import InvalidArgument, UnsupportedOperation, invalid, size_mismatch
from ._host import HostArray
from ._pickles import attributes_of, cloned, give_attributes, reduced
from ._protocols import ArrayProtocols
from ._records import BufferStatistics, LinkStatistics
from ._tables import pairs
from ._threads import to_thread
from ._unimem import Device, DeviceArray, Event

if TYPE_CHECKING:
    from ._buffer import UnifiedBuffer

_TRACKING = list(Tracking)


def _cupy_array(array: DeviceArray) -> Any:
    """A CuPy array over CUDA memory where CuPy is installed."""
    try:
        import cupy  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return array
    return cupy.from_dlpack(array)


class Elements(ArrayProtocols):
    """What a buffer and a part of one have in common.

    Offsets and counts are in elements, and are checked (InvalidArgument). Every access may raise OutOfMemory, DeviceError,
    DataLost, and the error of earlier work on the bytes it names; the data is then as it was. Reads on several threads are
    safe; writers need the caller's lock, as with NumPy's arrays.
    """

    __slots__ = ()

    # The sides

    @property
    def device(self) -> Any:
        """The elements on the buffer's device, current: the host's array on the cpu, whose memory is the same, a CuPy array on CUDA
        where CuPy is installed, else a `DeviceArray`. It keeps the memory in its place. What is written there is declared with
        ``mark_device_dirty()``."""
        return self.on()

    def on(self, device: Device | str | None = None) -> Any:
        """The same on any device."""
        array = self._device(named(device))
        if isinstance(array, DeviceArray) and array.device.backend == "cuda":
            return _cupy_array(array)
        return array

    @property
    def metal(self) -> Any:
        """The elements on a Metal device. UnsupportedOperation in this version."""
        raise _no_metal("metal")

    # Copies

    def sync_to_device(self, device: Device | str | None = None) -> None:
        """Brings a device up to date. BufferNotAllocated without storage."""
        self._sync_to_device(named(device))

    def prefetch(self, device: Device | str | None = None) -> Event:
        """Starts bringing the elements to a device; when they will be there."""
        return self._prefetch(named(device))

    async def ensure_on_device(self, device: Device | str | None = None) -> Any:
        """Brings the elements to a device without blocking the event loop; what `.device` gives."""
        on = named(device)
        return await to_thread(self.on, on)

    async def ensure_on_host(self) -> HostArray:
        """Brings the elements to the host without blocking the event loop; what `.host` gives."""
        return await to_thread(lambda: self.host)

    async def sync_to_device_async(self, device: Device | str | None = None) -> None:
        """`sync_to_device` on a thread, without blocking the event loop."""
        await to_thread(self.sync_to_device, device)

    async def sync_to_host_async(self) -> None:
        """`sync_to_host` on a thread, without blocking the event loop."""
        await to_thread(self.sync_to_host)

    async def synchronize_async(self) -> None:
        """`synchronize` on a thread, without blocking the event loop."""
        await to_thread(self.synchronize)

    async def copy_from_async(self, data: npt.ArrayLike) -> None:
        """`copy_from` on a thread, without blocking the event loop."""
        await to_thread(self.copy_from, data)

    async def to_numpy_async(self) -> np.ndarray:
        """`to_numpy` on a thread, without blocking the event loop."""
        return await to_thread(self.to_numpy)

    # Marks

    def mark_host_dirty(self, offset: int = 0, count: int | None = None) -> None:
        """Declares writes on the host that could not be noticed, made when no work read the elements any more. CoherenceConflict if they
        overlap unsynchronized writes of devices without covering all of them; BufferNotAllocated without storage."""
        self._mark_host_dirty(count_of("offset", offset), optional_count("count", count))

    def mark_device_dirty(
        self, offset: int = 0, count: int | None = None, *, device: Device | str | None = None
    ) -> None:
        """Declares writes on a device. The next read-back waits for that device."""
        self._mark_device_dirty(count_of("offset", offset), optional_count("count", count), named(device))

    def mark_metal_dirty(self, offset: int = 0, count: int | None = None) -> None:
        """UnsupportedOperation in this version."""
        raise _no_metal("mark_metal_dirty")

    # Hints

    def advise(self, advice: Advice, device: Device | str | None = None) -> None:
        """Tells of the elements' use, where a driver moves memory by itself, until `unadvise`: on a device, "cpu" for the host, by default the
        buffer's own. See `Advice`."""
        self._advise(number_in(Advice, "advice", advice), named(device), True)

    def unadvise(self, advice: Advice, device: Device | str | None = None) -> None:
        """Takes it back."""
        self._advise(number_in(Advice, "advice", advice), named(device), False)

    # Contents

    def copy_from(self, data: npt.ArrayLike, offset: int | None = None) -> None:
        """Replaces the contents on the host. `data` has exactly this shape (SizeMismatch, InvalidArgument) and a dtype that NumPy
        casts by `same_kind`; with `offset` it is any number of elements, from there on. Nothing has changed if it raises."""
        if offset is None and type(data) is np.ndarray and data.dtype == self.dtype and data.shape == self.shape and data.flags.c_contiguous:
            self._write(data, 0)  # what most ask for, without another look
            return
        if isinstance(data, _unimem.Window):
            if offset is not None:
                raise invalid("offset", offset, "left out when a buffer is copied: copy to a slice")
            copy(data, self)
            return
        if offset is None:
            self._write(elements_of(data, self.dtype, "data", self.shape, self.size), 0)
            return
        start = count_of("offset", offset)
        self._write(elements_of(data, self.dtype, "data", None, max(0, self.size - start)), start)

    def copy_to(self, out: np.ndarray, offset: int | None = None) -> None:
        """Copies the current contents into an array of exactly this shape and dtype, or with `offset` as many elements as it has."""
        if not isinstance(out, np.ndarray) or out.dtype != self.dtype:
            raise invalid("out", getattr(out, "dtype", type(out).__name__), f"an array of dtype {self.dtype}")
        start = 0 if offset is None else count_of("offset", offset)
        if start > self.size:
            raise invalid("offset", start, f"at most {self.size}")
        if out.size != self.size if offset is None else out.size > self.size - start:
            raise size_mismatch("copy_to", self.size if offset is None else max(0, self.size - start), out.size)
        if offset is None and out.shape != self.shape:
            raise invalid("out", f"array of shape {out.shape}", f"of shape {self.shape}")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise invalid("out", "a read-only or strided array", "writable and C-contiguous")
        if isinstance(out, HostArray) and out._hold is not None:
            out[...] = self.to_numpy() if offset is None else self.host.reshape(-1)[start : start + out.size].reshape(out.shape)
            return
        self._read(out, start)

    def to_numpy(self) -> np.ndarray:
        """A copy of the current contents, independent of the buffer."""
        return self._to_numpy()

    def fill(self, value: object, offset: int = 0, count: int | None = None) -> Any:
        """Sets elements on the side where the data is current; returns the buffer."""
        self._fill(value_of(value, self.dtype), count_of("offset", offset), optional_count("count", count))
        return self

    def zeros(self) -> Any:
        """Sets all elements to zero; returns the buffer."""
        self._fill(np.zeros((), self.dtype).tobytes(), 0, self.size)
        return self

    def map(self, mode: MapMode = MapMode.READ_WRITE) -> Mapping:
        """Host access between two moments, for code that no one can notice: a plain array in a ``with`` block, all of which counts as
        written at its end, unless `mode` is READ. DISCARD brings nothing in, for what is overwritten altogether."""
        return Mapping(*self._map(number_in(MapMode, "mode", mode)))

    # Parts

    def slice(self, offset: int = 0, count: int | None = None) -> BufferSlice:
        """Elements ``[offset, offset + count)`` in one dimension, without a copy: what is written through one is seen through the
        other. A slice keeps the buffer's contents alive."""
        start = count_of("offset", offset)
        number = self.size - start if count is None else count_of("count", count)
        if start > self.size or number > self.size - start or number < 0:
            raise invalid("slice", f"[{start}, {start + max(number, 0)})", f"within {self.size} elements")
        return BufferSlice(self, self._offset_bytes + start * self.itemsize, [number], self.dtype)

    def reshape(self, *shape: Any) -> BufferSlice:
        """The same elements with other extents, without a copy. SizeMismatch unless they multiply to `size`."""
        extents = shape_of(shape[0] if len(shape) == 1 else shape)
        elements = 1
        for extent in extents:
            elements *= extent
        if elements != self.size:
            raise size_mismatch("reshape", self.size, elements)
        return BufferSlice(self, self._offset_bytes, extents, self.dtype)

    def view(self, dtype: npt.DTypeLike) -> BufferSlice:
        """The same bytes as elements of another dtype, in one dimension. SizeMismatch unless they are a whole number of them,
        InvalidArgument if the first one's offset does not suit the dtype's alignment."""
        other = dtype_of(dtype)
        if self.nbytes % other.itemsize:
            whole = -(-self.nbytes // other.itemsize) * other.itemsize
            raise size_mismatch(f"{self.nbytes} bytes as elements of {other}", whole, self.nbytes, "bytes")
        if self._offset_bytes % other.alignment:
            raise invalid("offset", self._offset_bytes, f"a multiple of {other.alignment} bytes for {other}")
        return BufferSlice(self, self._offset_bytes, [self.nbytes // other.itemsize], other)

    def block(self, begin: Iterable[SupportsIndex], count: Iterable[SupportsIndex]) -> BufferBlock:
        """A rectangular part, `count` elements from `begin` on in every dimension, without a copy: what is copied out of and into it are its
        rows alone. `reshape` gives a buffer its extents. InvalidArgument unless it lies within them."""
        return BufferBlock(self, begin, count)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a buffer without dimensions")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return self.host[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.host)

    def __contains__(self, element: object) -> bool:
        return element in self.host

    # Copies of it

    def clone(self) -> UnifiedBuffer:
        """A deep copy of the current contents, as a buffer of its own with the same options, and of the same manager. Of a subclass it is
        one, with the same attributes."""
        return give_attributes(cloned(self), self.__getstate__())

    def __copy__(self) -> UnifiedBuffer:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedBuffer:
        result = memo[id(self)] = cloned(self)  # before its attributes, which may name it
        return give_attributes(result, deepcopy(self.__getstate__(), memo))

    def __getstate__(self) -> Any:
        """The attributes and slots that a subclass has added, which copies and pickles keep."""
        return attributes_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self, 2)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if type(self).__reduce__ is not Elements.__reduce__:
            return self.__reduce__()  # a subclass's own
        return reduced(self, index(protocol))

    # Looks

    def valid_on(self, device: Device | str | None = None) -> bool:
        """Whether a device holds every byte of the buffer."""
        return self._valid_on(named(device))

    @property
    def tracking(self) -> Tracking:
        """How host writes are noticed: what was asked for, or what serves in its place."""
        return _TRACKING[self._tracking]

    @property
    def statistics(self) -> BufferStatistics:
        """What moved for the buffer since it was made, all of it."""
        return BufferStatistics(**self._statistics())

    @property
    def migrations(self) -> list[LinkStatistics]:
        """What moved between which places."""
        return [LinkStatistics(*one) for one in self._migrations()]

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, state={self.state.value}{name})"

    def _repr_html_(self) -> str:
        try:
            device = self.default_device.id
        except InvalidArgument:
            device = "none: released to its pool"  # looking at it is not using it
        rows = [("shape", self.shape), ("dtype", self.dtype), ("bytes", _unimem.format_size(self.nbytes)), ("state", self.state.value),
                ("device", device)]  # fmt: skip
        return pairs(type(self).__name__, rows)


class BufferSlice(Elements):
    """A part of a buffer, or all of it with another shape or dtype. Shares memory and coherence with the buffer, whose states,
    statistics and marks it shows and moves, and keeps them alive. What is copied or pickled of it is a buffer of its own. Made by
    `slice`, `reshape` and `view`, which check what this does not."""

    __slots__ = ("__weakref__",)

    def __init__(self, of: Elements, offset_bytes: int, shape: list[int], dtype: np.dtype[Any]) -> None:
        super().__init__(of, offset_bytes, shape, dtype)


class Mapping:
    """Elements of a buffer on the host, from `map` to `unmap`: a plain, writable array for code of any language.

        with buffer.map(MapMode.DISCARD) as array:
            file.readinto(array)

    Device work on the elements meanwhile sees what was there before. Afterwards `array` cannot be written through any more; views
    of it that live on show memory that stays theirs. Used by one thread at a time."""

    __slots__ = ("_access", "array")

    def __init__(self, array: np.ndarray, access: _unimem.HostWrite | _unimem.HostHold) -> None:
        self.array = array
        self._access: _unimem.HostWrite | _unimem.HostHold | None = access

    def unmap(self) -> None:
        """Ends the access. Idempotent. CoherenceConflict if a device wrote a part of the elements meanwhile and something outside them
        too; where they cover all that devices wrote, the host wins and is counted."""
        write = self._end()
        if write is not None:
            write.done()

    def _end(self) -> _unimem.HostWrite | None:
        """What is to be counted now as written, if anything is. A read has ended then: other processes may write."""
        access, self._access = self._access, None
        if not isinstance(access, _unimem.HostWrite):
            return None
        self.array.flags.writeable = False
        return access

    def __reduce__(self) -> Any:
        raise TypeError("a mapping ends once, and is neither copied nor pickled: copy its array")

    def __enter__(self) -> np.ndarray:
        return self.array

    def __exit__(self, *exception: object) -> None:
        self.unmap()

    def __del__(self) -> None:
        write = self._end()
        if write is not None:
            write.done_quietly()  # what goes wrong, the next access to the buffer raises


def _no_metal(operation: str) -> UnsupportedOperation:
    where, reason = "this system", "Metal is macOS's, and not in this version"
    error = UnsupportedOperation._of(f"{operation} is not supported on {where}: {reason}", operation, where, reason)
    assert isinstance(error, UnsupportedOperation)
    return error


def copy(source: _unimem.Window | BufferBlock, target: _unimem.Window | BufferBlock) -> None:
    """Copies all elements along the nearest path: on the host if the source is current there, else from the device that has it,
    directly where the two devices reach each other. Does not wait for the devices: the next read does. SizeMismatch unless both
    have as many elements, of two blocks in every dimension, InvalidArgument for other dtypes."""
    if isinstance(source, BufferBlock) or isinstance(target, BufferBlock):
        copy_blocks(source, target)
        return
    for name, one in (("source", source), ("target", target)):
        if not isinstance(one, _unimem.Window):
            raise invalid(name, type(one).__name__, "a buffer, a slice or a block: arrays are copied by copy_from and copy_to")
    if source.dtype != target.dtype:
        raise invalid("target", f"buffer of {target.dtype}", f"of {source.dtype}, as the source")
    if source.size != target.size:
        raise size_mismatch("copy", target.size, source.size)
    _unimem._copy(source, target)
