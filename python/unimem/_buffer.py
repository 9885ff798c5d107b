"""Whole buffers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import AnyPath, access_of, count_of, dtype_of, file_mode_of, flag_of, path_of, priority_of, shape_of, text_of
from ._devices import chosen, named
from ._elements import BufferSlice, Elements
from ._enums import Advice, Location, Tracking, number_in
from ._errors import Error, UnsupportedOperation, invalid
from ._host import HostArray
from ._manager import MemoryManager, native
from ._pickles import lies_in_a_buffer
from ._processes import send_by_memory
from ._unimem import Device, DeviceArray

if TYPE_CHECKING:
    from ._manager_records import PlacementDecision

_ADVICE = list(Advice)

# From how many bytes on buffers are shared that say nothing of it; None: none are.
_shared_from_bytes: int | None = None


def share_from(bytes: int | None) -> None:
    """For who decides for a whole process."""
    global _shared_from_bytes
    _shared_from_bytes = bytes


# DLPack's numbers. The host reaches pinned and managed memory, too.
_HOST_KINDS = (1, 3, 11, 13)
_DLPACK_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "extension", 14: "oneapi", 15: "webgpu"}


def _taken_over(source: Any, **how: Any) -> npt.NDArray[Any]:
    """NumPy's array over what is handed over by DLPack. InvalidArgument for types and devices that NumPy does not know, and for elements
    without memory, for which it would make some of its own."""
    try:
        array = np.from_dlpack(source, **how)
    except (RuntimeError, BufferError) as error:  # NumPy 2.5 raises the latter for what was the former before
        if isinstance(error, Error):
            raise
        raise invalid("source", type(source).__name__, f"what NumPy can take over by DLPack ({error})") from error
    if array.size and array.flags.owndata:
        raise invalid("source", f"{array.size} elements without memory", "handed over with the address of its memory")
    return array


class UnifiedBuffer(Elements):
    """One logical array that lives on the host, on devices, or on both, and is copied only when a side is accessed
    that is out of date.

        buffer = UnifiedBuffer((1000,), dtype=np.float32)
        buffer.host[:] = data          # HOST_DIRTY
        kernel(buffer.device)          # copied to the device: SYNCHRONIZED
        buffer.mark_device_dirty()     # DEVICE_DIRTY
        result = buffer.to_numpy()     # copied back

    Nothing is allocated before the first access, or `allocate()`. `device`: where `.device` is, by itself or by its id; by
    default `default_device()`. `pinned`: page-lock the host side (whether it worked: `is_pinned`). `strict`: every access before
    `allocate()` raises BufferNotAllocated (for all buffers with UNIMEM_STRICT=1). `shared`: its host memory is made so that other
    processes can have it, too (`BufferRegistry.publish` with `cross_process` copies nothing then); by default it is not, but in a worker of Dask's that says so
    (`unimem.dask.MemoryPlugin`). Raises InvalidArgument for negative or too large
    shapes and for dtypes that are no plain bytes.
    """

    __slots__ = ("__weakref__",)

    def __init__(
        self,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: npt.DTypeLike = np.float32,
        *,
        pinned: bool = False,
        device: Device | str | None = None,
        location: Location = Location.DEVICE,
        tracking: Tracking = Tracking.ACCESS,
        strict: bool | None = None,
        name: str = "",
        priority: int = 0,
        manager: MemoryManager | None = None,
        shared: bool | None = None,
    ) -> None:
        extents, element = shape_of(shape), dtype_of(dtype)
        if shared is not None:
            for_others = flag_of("shared", shared)
        else:
            large = _shared_from_bytes is not None and prod(extents) * element.itemsize >= _shared_from_bytes
            for_others = large and not pinned and tracking is Tracking.ACCESS and location is not Location.UNIFIED
        super().__init__(
            extents, element, native(manager), chosen(device), number_in(Location, "location", location),
            number_in(Tracking, "tracking", tracking), flag_of("pinned", pinned) | for_others << 1,
            _unimem._strict_by_default() if strict is None else flag_of("strict", strict), text_of("name", name), priority_of(priority),
        )  # fmt: skip

    def __init_subclass__(cls, **keywords: Any) -> None:
        """An `__init__` that forgets that of its base is told when it is called, by the name of its class: what it leaves has no buffer
        behind it, and nothing that it could say of itself."""
        super().__init_subclass__(**keywords)
        send_by_memory(cls)
        if "__init__" not in vars(cls):
            return
        original = cls.__init__

        @wraps(original)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if type(self) is cls:
                _unimem._require_initialized(self)

        setattr(cls, "__init__", checked)

    @classmethod
    def from_array(
        cls,
        array: np.ndarray,
        *,
        copy: bool = False,
        device: Device | str | None = None,
        tracking: Tracking = Tracking.ACCESS,
        name: str = "",
        manager: MemoryManager | None = None,
    ) -> UnifiedBuffer:
        """A buffer over the memory of an array, without a copy; its contents are current, and the array stays alive with it. With ``copy=True``
        over a copy of its own, also of what is read-only or strided. The array is the caller's again after `free()` or the end of `with`, which wait for
        work on it; what a device has newer reaches it by `sync_to_host()` alone.

        What is written through `array` itself is not noticed, as through any pointer. InvalidArgument unless it is writable,
        C-contiguous, aligned and of plain bytes; UnsupportedOperation for `Tracking.PAGES`: its pages may hold other things, too."""
        if not isinstance(array, np.ndarray):
            raise invalid("array", type(array).__name__, "a numpy.ndarray")
        if flag_of("copy", copy):
            buffer = cls.__new__(cls)
            UnifiedBuffer.__init__(buffer, array.shape, array.dtype, device=device, tracking=tracking, name=name, manager=manager)
            buffer.allocate(True, False).copy_from(array)
            return buffer
        return cls._over(array, device, tracking, name, manager, "or copied with copy=True")

    @classmethod
    def _over(
        cls, array: np.ndarray, device: Device | str | None, tracking: Tracking, name: str, manager: MemoryManager | None, otherwise: str
    ) -> UnifiedBuffer:
        dtype_of(array.dtype)
        for flag, said in (("writeable", "read-only"), ("c_contiguous", "not C-contiguous"), ("aligned", "not aligned")):
            if not getattr(array.flags, flag):
                raise invalid("array", said, f"writable, C-contiguous and aligned, {otherwise}")
        if lies_in_a_buffer(array):
            raise invalid("array", "the host side of another buffer", f"memory that no buffer looks after: slice the buffer; {otherwise}")
        buffer = cls.__new__(cls)
        _unimem.Window.__init__(
            buffer, array.view(np.ndarray), native(manager), chosen(device), number_in(Location, "location", Location.HOST),
            number_in(Tracking, "tracking", tracking), False, text_of("name", name), 0,
        )  # fmt: skip
        return buffer

    @classmethod
    def from_dlpack(
        cls,
        source: Any,
        *,
        copy: bool | None = None,
        device: Device | str | None = None,
        name: str = "",
        manager: MemoryManager | None = None,
    ) -> UnifiedBuffer:
        """A buffer over the host memory of any object that speaks DLPack, without a copy; with ``copy=True`` over a copy of its own, also of
        what is elsewhere, if the object hands itself over to the host.

        UnsupportedOperation, which names the device, for the memory of one that is not copied; InvalidArgument for what does not speak
        DLPack, and for what is read-only, not C-contiguous, or a buffer's already."""
        if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
            raise invalid("source", type(source).__name__, "an object with __dlpack__ and __dlpack_device__")
        try:
            kind, number = map(int, source.__dlpack_device__())
        except (TypeError, ValueError) as error:
            raise invalid("source", type(source).__name__, f"at a place that DLPack can say: a kind and a number ({error})") from None
        if copy:
            return cls.from_array(_taken_over(source, device="cpu", copy=True), copy=True, device=device, name=name, manager=manager)
        ours = isinstance(source, Elements) or (isinstance(source, HostArray) and source._hold is not None)
        if ours or (isinstance(source, DeviceArray) and kind in _HOST_KINDS):
            raise invalid("source", "a buffer's", "memory that no buffer looks after: slice the buffer, or copy=True")
        if kind not in _HOST_KINDS:
            place = f"{_DLPACK_KINDS.get(kind, f'device kind {kind}')}:{number}"
            reason = "this version wraps host memory alone: hand it over on the host, or copy=True"
            raise UnsupportedOperation._of(
                f"wrapping memory is not supported on {place}: {reason}", "wrapping memory", place, reason
            )  # fmt: skip
        return cls.from_array(_taken_over(source), device=device, name=name, manager=manager)

    @classmethod
    def from_file(
        cls,
        path: AnyPath,
        dtype: npt.DTypeLike,
        shape: SupportsIndex | Iterable[SupportsIndex] | None = None,
        offset: int = 0,
        mode: str = "r",
        *,
        access: str = "auto",
        device: Device | str | None = None,
        name: str = "",
        manager: MemoryManager | None = None,
    ) -> UnifiedBuffer:
        """A buffer whose first valid copy is a file, from byte `offset` on: nothing is read before it is looked at. `shape`: all there is, in one
        dimension, unless it is given. `mode`, as `numpy.memmap` has it: "r" cannot be written, "c" keeps what is written to itself, "r+" writes it
        to the file: by `flush()`, at the end of `with`, which flushes, for want of memory, or at its end. On the host its memory comes in parts: with a limit below the file, look at
        slices, whose `.host` keeps its part as long as the array lives.

        `access`: "auto" reads past the page cache what it does not have, "direct" everything (UnsupportedOperation where the file system has no
        such reads), "cached" nothing; statistics tell how many bytes came so (`file_direct_bytes`). "mapped", in mode
        "r" alone: `.host` is read-only over the file's own pages, which are not copied and no memory of the manager's (`file_mapped_bytes`); bytes that the
        file no longer has read 0xCD there, and the next access is IoError. `offset` is a multiple of the dtype's alignment then.

        IoError for what cannot be opened so, is no regular file or no multiple of the dtype's size; InvalidArgument beyond the file's end, and for
        what cannot be mapped."""
        buffer = cls.__new__(cls)
        _unimem.Window.__init__(
            buffer, path_of("path", path), None if shape is None else shape_of(shape), dtype_of(dtype),
            count_of("offset", offset), file_mode_of(mode), access_of(access), native(manager), chosen(device), text_of("name", name),
        )  # fmt: skip
        return buffer

    def flush(self) -> None:
        """Writes to the file that the buffer was made from what is newer than there, and returns when the file system has all of it. Nothing to do
        in modes "r" and "c". IoError, with all of it in the buffer still; UnsupportedOperation for other buffers."""
        self._flush()

    def allocate(self, host: bool = True, device: bool = True) -> UnifiedBuffer:
        """Storage now instead of at the first access; returns the buffer."""
        self._allocate(host, device)
        return self

    def free(self) -> UnifiedBuffer:
        """Gives all storage back, with the data in it; returns the buffer, which may be used again, empty of data. Memory that
        arrays still show stays theirs. Idempotent."""
        self._free()
        return self

    def reset(self) -> UnifiedBuffer:
        """As it was made: no storage, no data, statistics at zero; returns the buffer."""
        self._reset()
        return self

    def resize(self, count: int) -> UnifiedBuffer:
        """Changes the number of elements, in one dimension, keeping as many as fit; returns the buffer. InvalidArgument while
        an array over either side is held."""
        self._resize(count_of("count", count))
        return self

    def release_device(self, device: Device | str | None = None) -> None:
        """Gives a device copy back, or all, after saving to the host what only it holds. InvalidArgument while it is leased."""
        self._release_device(named(device))

    def release_host(self) -> None:
        """Gives the host copy back, after saving to the device what only it holds. InvalidArgument while an array over it lives."""
        self._release_host()

    def discard(self) -> None:
        """Forgets the data without saving it; the storage stays."""
        self._discard()

    @property
    def location(self) -> Location:
        """Where it is at home: the location it was given, but HOST where locked memory was refused."""
        return self._location

    @property
    def placement(self) -> PlacementDecision | None:
        """How `MemoryManager.allocate` came to that, and `why()`; None for buffers that were made otherwise."""
        return self._placement

    @property
    def priority(self) -> int:
        """Of buffers that could give device memory back those of lower priority do first."""
        return self._priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._priority = priority_of(value)

    def will_use(self, device: Device | str | None = None) -> UnifiedBuffer:
        """A hint that the buffer is about to be used on a device, so that its copy there goes last; returns the buffer."""
        self._foretell(named(device), True)
        return self

    def wont_use(self, device: Device | str | None = None) -> UnifiedBuffer:
        """A hint that it will not be used there for long, so that its copy goes first; returns the buffer."""
        self._foretell(named(device), False)
        return self

    @property
    def advice(self) -> list[tuple[Advice, Device | None, slice]]:
        """The advice that holds: of which device, and for which of the buffer's bytes."""
        return [(_ADVICE[number], on, slice(begin, end)) for number, on, begin, end in self._advice()]

    def __enter__(self) -> UnifiedBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        """Frees the buffer, as `free` does. The file that it was made from has what is newer by then (mode "r+"), or IoError says why not, and the
        buffer still has it. One that went to its pool meanwhile is the pool's."""
        if self.is_allocated:
            if self._is_from_file:
                self._flush()
            self.free()



for _kind in (UnifiedBuffer, BufferSlice):
    send_by_memory(_kind)
