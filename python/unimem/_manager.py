"""Memory of every device and location, with limits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import count_of
from ._devices import named
from ._enums import Location
from ._errors import invalid
from ._records import GlobalMemoryStatistics
from ._unimem import Device, default_device

if TYPE_CHECKING:
    from ._buffer import UnifiedBuffer


class MemoryManager:
    """A pool per device and location, with limits, for everything that is allocated from it. When a device is full, it asks
    buffers for their device copies, those that lose least by it first, before it raises OutOfMemory.

    Thread-safe. What is behind it stays until the process ends, since buffers and arrays that were made from it may: `cleanup()`,
    or the end of a ``with`` block, gives back what it has cached.
    """

    __slots__ = ("_native",)

    def __init__(self, *, _native: _unimem._MemoryManager | None = None) -> None:
        self._native = _unimem._new_manager() if _native is None else _native

    def allocate(
        self,
        what: SupportsIndex | Iterable[SupportsIndex] | np.ndarray,
        dtype: npt.DTypeLike | None = None,
        *,
        location: Location = Location.DEVICE,
        device: Device | str | None = None,
        name: str = "",
    ) -> UnifiedBuffer:
        """A buffer of a shape, allocated where `location` says, contents undefined; or, of an array, one holding a copy of it."""
        from ._buffer import UnifiedBuffer

        array = what if isinstance(what, np.ndarray) else None
        pinned = location is Location.PINNED
        shape = array.shape if array is not None else what
        buffer = UnifiedBuffer(
            cast(Any, shape), dtype if dtype is not None else array.dtype if array is not None else np.float32, pinned=pinned, device=device,
            location=location, name=name, manager=self,
        )  # fmt: skip
        on_device = location is Location.DEVICE
        if array is None:
            return buffer.allocate(not on_device, on_device)
        buffer.allocate(True, False)
        buffer.copy_from(array)
        if on_device:
            buffer.sync_to_device()
        return buffer

    def available_memory(self, device: Device | str | None = None) -> int:
        """Bytes that could still be allocated on a device: its limit less what is live there; cached blocks count as free."""
        return self._native._available(named(device) or default_device())

    def total_memory(self, device: Device | str | None = None) -> int:
        """The limit, or the device's capacity if none is set or it is smaller."""
        return self._native._total(named(device) or default_device())

    def set_limit(self, device: Device | str, bytes: int | str) -> None:
        """Bounds the memory reserved on a device: a number of bytes, or ``"64MiB"``. InvalidArgument if it is below what is live."""
        on = named(device)
        if on is None:
            raise invalid("device", device, "a device or its id")
        self._native._set_limit(on, _unimem.parse_size(bytes) if isinstance(bytes, str) else count_of("bytes", bytes))

    def cleanup(self) -> int:
        """Gives all cached blocks back; returns the bytes. Never touches live memory."""
        return self._native.cleanup()

    @property
    def statistics(self) -> GlobalMemoryStatistics:
        return GlobalMemoryStatistics(**self._native._statistics())

    def report(self) -> dict[str, Any]:
        """The statistics with every pool and size class, as the command line prints them."""
        return cast(dict[str, Any], json.loads(self._native.to_json()))

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        s = self.statistics
        size = _unimem.format_size
        return f"<unimem.MemoryManager: {size(s.active_bytes)} in use, {size(s.pooled_bytes)} cached>"

    def _repr_html_(self) -> str:
        pools = self.report()["pools"]
        head = "<tr><th>device</th><th>location</th><th>in use</th><th>cached</th></tr>"
        size = _unimem.format_size
        rows = "".join(
            f"<tr><td>{one['device']}</td><td>{one['location']}</td><td>{size(one['pool']['active_bytes'])}</td>"
            f"<td>{size(one['pool']['total_pooled_bytes'])}</td></tr>"
            for one in pools
        )
        return f"<table><caption>MemoryManager</caption>{head}{rows}</table>"


_default = MemoryManager(_native=_unimem._default_manager())


def default_manager() -> MemoryManager:
    """The manager used when none is named."""
    return _default


def native(manager: MemoryManager | None) -> _unimem._MemoryManager | None:
    return None if manager is None else manager._native
