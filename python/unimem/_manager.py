"""Memory of every device and location, with limits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import AnyPath, count_of, dtype_of, elements_of, flag_of, optional_size, path_of, shape_of, size_of, text_of
from ._devices import chosen, default_device, named
from ._enums import AccessPattern, Location, Placement, PressureLevel, Tracking, number_in
from ._errors import invalid
from ._subscriptions import PressureSubscription
from ._tables import grid
from ._unimem import Device

if TYPE_CHECKING:
    from ._buffer import UnifiedBuffer
    from ._manager_records import (
        BlockStatistics,
        GlobalMemoryStatistics,
        LeakReport,
        Link,
        LiveAllocation,
        MemorySnapshot,
        OptimizationReport,
        PlacementDecision,
        PlacementRecommendations,
        PoolDefragmentation,
        PoolFragmentation,
        PressureChange,
        Usage,
    )


class BlockPool:
    """The blocks of one location of one device, which buffers take their memory from. Thread-safe."""

    __slots__ = ("_native",)

    def __init__(self, _native: _unimem._BlockPool) -> None:
        self._native = _native

    @property
    def statistics(self) -> BlockStatistics:
        """What the blocks have come to."""
        return self._native._statistics()

    def fragmentation(self) -> PoolFragmentation:
        """Free memory inside of it, by a walk over its blocks."""
        return self._native._fragmentation()

    def trim(self, keep_bytes: int | str = 0) -> int:
        """Gives cached blocks back, the oldest first, until at most so many bytes are cached; returns the bytes given back."""
        return self._native._trim(size_of("keep_bytes", keep_bytes))

    def defragment(self, *, max_moved_bytes: int | str | None = None) -> PoolDefragmentation:
        """Puts free pages side by side, at most so many bytes of them. Nothing that is in use moves, and nothing is copied."""
        return self._native._defragment(optional_size("max_moved_bytes", max_moved_bytes))

    def _repr_html_(self) -> str:
        return self.statistics._repr_html_()


def _limited(device: Device | str) -> Device:
    on = named(device)
    if on is None:
        raise invalid("device", device, "a device or its id")
    return on


class MemoryManager:
    """A pool per device and location, with limits, for everything that is allocated from it. When a device is full, it asks
    buffers for their device copies, those that lose least by it first, before it raises OutOfMemory.

    Thread-safe. What is behind it stays until the process ends, since buffers and arrays that were made from it may: `cleanup()`,
    or the end of a ``with`` block, gives back what it has cached. `stacks_every`: of every how many-th buffer the stack
    is captured for `leak_report`, Python's calls that made it first: 1 all, 0 none (UnsupportedOperation where the library cannot). `spill_directory`: where host memory
    of buffers goes when there is no more of it, as long as nobody shows it, as an array of ``buffer.host`` does while it lives; IoError if no file
    can be made there. `zero_on_release`: memory is overwritten with zeros when a buffer gives it back, so that what one owner wrote never
    reaches another, and what is the host's is left out of core dumps.
    """

    __slots__ = ("_native",)

    def __init__(
        self,
        *,
        stacks_every: int = 0,
        spill_directory: AnyPath | None = None,
        zero_on_release: bool = False,
        _native: _unimem._MemoryManager | None = None,
    ) -> None:
        directory = "" if spill_directory is None else path_of("spill_directory", spill_directory)
        self._native = _native or _unimem._new_manager(count_of("stacks_every", stacks_every), directory, flag_of("zero_on_release", zero_on_release))

    def allocate(
        self,
        what: SupportsIndex | Iterable[SupportsIndex] | np.ndarray,
        dtype: npt.DTypeLike | None = None,
        *,
        location: Location | None = None,
        placement: Placement = Placement.AUTOMATIC,
        access: AccessPattern = AccessPattern.UNKNOWN,
        device: Device | str | None = None,
        name: str = "",
    ) -> UnifiedBuffer:
        """A buffer of a shape, contents undefined, or, of an array, one holding a copy of it; with memory where it was asked for.

        `location` is a demand: UnsupportedOperation where the device does not serve it. None: the placement decides, by the documented
        table and by what buffers of this name were used for so far; what came of it is told by `buffer.location` and
        `buffer.placement`. InvalidArgument if the two contradict each other."""
        from ._buffer import UnifiedBuffer

        array = what if isinstance(what, np.ndarray) else None
        shape = shape_of(cast(Any, what)) if array is None else list(array.shape)
        element = dtype_of(dtype if dtype is not None else np.float32 if array is None else array.dtype)
        contents = None if array is None else elements_of(array, element, "data", array.shape, array.size)
        buffer = UnifiedBuffer.__new__(UnifiedBuffer)
        _unimem.Window.__init__(
            buffer, shape, element, self._native, chosen(device), -1 if location is None else number_in(Location, "location", location),
            number_in(Placement, "placement", placement), number_in(AccessPattern, "access", access), name,
        )  # fmt: skip
        if contents is not None:
            buffer.copy_from(contents)
            if buffer.location is Location.DEVICE:
                buffer.sync_to_device()
        return buffer

    def wrap(self, array: np.ndarray, *, device: Device | str | None = None, name: str = "") -> UnifiedBuffer:
        """A buffer over the memory of an array, without a copy: `UnifiedBuffer.from_array` with this manager."""
        from ._buffer import UnifiedBuffer

        if not isinstance(array, np.ndarray):
            raise invalid("array", type(array).__name__, "a numpy.ndarray")
        return UnifiedBuffer._over(array, device, Tracking.ACCESS, name, self, "or copied with allocate(array)")

    def pool(self, device: Device | str | None = None, location: Location = Location.DEVICE) -> BlockPool:
        """The blocks that serve a location of a device. Host and pinned memory of every device are the cpu's."""
        return BlockPool(self._native._pool(named(device) or default_device(), number_in(Location, "location", location)))

    def available_memory(self, device: Device | str | None = None) -> int:
        """Bytes that could still be allocated on a device: its limit less what is live there; cached blocks count as free."""
        return self._native._available(named(device) or default_device())

    def total_memory(self, device: Device | str | None = None) -> int:
        """The limit, or the device's capacity if none is set or it is smaller."""
        return self._native._total(named(device) or default_device())

    def set_limit(self, device: Device | str, bytes: int | str, *, location: Location | None = None) -> None:
        """Bounds the memory reserved on a device, of the cpu all of the host's together, pinned memory included: a number of bytes, or
        ``"64MiB"``. InvalidArgument if it is below what is live. With a location, that one alone: pageable and pinned memory are the host's,
        whatever device is named, and their limits hold within that of all of it."""
        self._native._set_limit(_limited(device), -1 if location is None else number_in(Location, "location", location), size_of("bytes", bytes))

    @contextmanager
    def limit(self, device: Device | str, bytes: int | str, *, location: Location | None = None) -> Iterator[MemoryManager]:
        """`set_limit` for a ``with`` block, of whatever thread: what bounded the memory before does so again at its end, also after an
        exception. InvalidArgument at the beginning as there, and at the end if more is live by then than the earlier limit allows."""
        on = _limited(device)
        place = -1 if location is None else number_in(Location, "location", location)
        earlier = self._native._limit(on, place)
        self._native._set_limit(on, place, size_of("bytes", bytes))
        try:
            yield self
        finally:
            self._native._set_limit(on, place, earlier)

    def pressure(self, device: Device | str | None = None, location: Location = Location.DEVICE) -> PressureLevel:
        """How full a location of a device is, exactly and now, by what is live there from this manager."""
        return self._native._pressure(named(device) or default_device(), number_in(Location, "location", location))

    def on_pressure(self, callback: Callable[[PressureChange], object]) -> PressureSubscription:
        """Calls `callback` for every crossing of a level from now on, of every device and location, until the subscription is ended.

        The calls come on a thread of the manager's, one after the other: they may allocate, free and set limits. What one raises is logged.
        A crossing is noticed where the manager is asked for memory, a limit, its pressure or a cleanup."""
        if not callable(callback):
            raise invalid("callback", repr(callback), "callable")
        return PressureSubscription(self._native._on_pressure(callback))

    def settle_pressure(self) -> None:
        """Returns when callbacks have been told all that was noticed before; at once within one."""
        self._native._settle_pressure()

    def links(self, *devices: Device | str) -> tuple[Link, ...]:
        """How fast bytes travel between the host and these devices, and between them; of all devices if none are named. What a device
        does not say is measured, once, in milliseconds."""
        wanted = [named(one) or default_device() for one in devices] if devices else _unimem.devices()
        return self._native._links(wanted)

    def cleanup(self) -> int:
        """Gives all cached blocks back; returns the bytes. Never touches live memory."""
        return self._native.cleanup()

    @property
    def statistics(self) -> GlobalMemoryStatistics:
        """All memory of the manager, at one moment."""
        return self._native._statistics()

    def snapshot(self) -> MemorySnapshot:
        """The statistics, `usage()`, `leak_report()` and the limits in one, to be kept, compared and printed."""
        return self._native._snapshot()

    def report(self) -> dict[str, Any]:
        """The statistics with every pool and size class, as the command line prints them."""
        return cast(dict[str, Any], json.loads(self.statistics.to_json()))

    def usage(self) -> Usage:
        """The memory of buffers by device, location and name. Memory that was wrapped is in none of it."""
        return self._native._usage()

    def live(self) -> tuple[LiveAllocation, ...]:
        """Every piece of memory that a buffer of this manager has."""
        return self._native._live()

    def leak_report(self) -> LeakReport:
        """The same as what has not been given back, the largest first: collect garbage before asking."""
        return self._native._leak_report()

    def recommendations(self, device: Device | str | None = None) -> PlacementRecommendations:
        """What new buffers on a device should ask for, from what all buffers were used for."""
        return self._native._recommendations(named(device) or default_device())

    def place(
        self,
        bytes: int | str,
        *,
        placement: Placement = Placement.AUTOMATIC,
        access: AccessPattern = AccessPattern.UNKNOWN,
        device: Device | str | None = None,
        name: str = "",
    ) -> PlacementDecision:
        """Where a buffer of that many bytes should be at home, and `why()`, without allocating it."""
        return self._native._place(
            named(device) or default_device(), size_of("bytes", bytes), number_in(Placement, "placement", placement),
            number_in(AccessPattern, "access", access), name,
        )  # fmt: skip

    def optimize(self, *, max_pinned_bytes: int | str = 256 << 20, max_placed_bytes: int | str = 256 << 20) -> OptimizationReport:
        """Acts on what is known of the use of buffers: locks host memory of what is copied again and again, gives back devices' copies
        that are not about to be used, brings back what is. Contents, and addresses that were given away, stay as they are."""
        return self._native._optimize(size_of("max_pinned_bytes", max_pinned_bytes), size_of("max_placed_bytes", max_placed_bytes))

    def defragment(
        self, device: Device | str | None = None, *, max_moved_bytes: int | str | None = None, max_copied_bytes: int | str | None = None
    ) -> PoolDefragmentation:
        """Brings the free memory of a device together, at most so many bytes of it, and moves blocks in use that no code has an address
        of, by copies of at most so many bytes."""
        return self._native._defragment(
            named(device) or default_device(), optional_size("max_moved_bytes", max_moved_bytes), optional_size("max_copied_bytes", max_copied_bytes)
        )

    def save(self, path: AnyPath) -> None:
        """Writes every live buffer that was given a name to a ``.safetensors``, from wherever its bytes are, in blocks of 4 MiB: its dtype
        and shape where the format has the dtype, else bytes. States stay as they are. A buffer that nothing has used yet is listed
        without bytes. The file appears whole, synced, or not at all, with a checksum of every 64 MiB in its metadata.

        InvalidArgument if two buffers have one name, or one has none that the format takes. Buffers over files that were given no name,
        and those of a `MemoryPool`, are left out. Writers need the caller's lock, as for any read. Ctrl-C ends it."""
        self._native._save(path_of("path", path))

    def restore(self, path: AnyPath) -> None:
        """Fills the named buffers with what a ``.safetensors`` has, which must be the very ones that it has, of equal bytes and dtypes;
        else nothing changes: NotFound, SizeMismatch, InvalidArgument, UnsupportedOperation for a buffer that is not to be written. The
        checksums of a file of `save` are looked at before anything changes: IoError, which names the buffer. What fails afterwards
        leaves some buffers restored and others not."""
        self._native._restore(path_of("path", path))

    def sleep(self, tag: str = "") -> int:
        """Gives the device memory of the buffers back that the tag names, to the drivers, and keeps their contents on the host, or where
        that has no room in the folder to spill to. Returns the bytes that they had. A tag is a name, or what is in front of a "/" or "."
        in it; the empty one names all. A buffer that is used meanwhile comes back by itself.

        NotFound if it names none; InvalidArgument if it sleeps already, or something is leased."""
        return self._native._sleep(text_of("tag", tag))

    def wake(self, tag: str = "") -> int:
        """Brings back what `sleep` of the same tag has taken away, to the devices it was on. Returns the bytes that were copied, once they
        have arrived. NotFound if the tag is not asleep; OutOfMemory, with nothing moved, if it does not fit beside what is there."""
        return self._native._wake(text_of("tag", tag))

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        s = self.statistics
        size = _unimem.format_size
        return f"<unimem.MemoryManager: {size(s.active_bytes)} in use, {size(s.pooled_bytes)} cached>"

    def _repr_html_(self) -> str:
        names = ("device", "location", "active_bytes", "total_pooled_bytes")
        rows = [(one.device, one.location.value, one.pool.active_bytes, one.pool.total_pooled_bytes) for one in self.statistics.pools]
        return grid("MemoryManager", names, rows)


_default: MemoryManager | None = None


def default_manager() -> MemoryManager:
    """The manager used when none is named."""
    global _default
    if _default is None:
        _default = MemoryManager(_native=_unimem._default_manager())
    return _default


def _forget_parents() -> None:
    global _default
    _default = None


os.register_at_fork(after_in_child=_forget_parents)  # a child has a default manager of its own


def native(manager: MemoryManager | None) -> _unimem._MemoryManager | None:
    if manager is None:
        return None
    if not isinstance(manager, MemoryManager):
        raise invalid("manager", f"{type(manager).__name__} {manager!r}", "a MemoryManager")
    return manager._native
