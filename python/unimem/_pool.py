"""Whole buffers, kept for who wants one of the same kind again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import ALL, count_of, dtype_of, flag_of, number_of, shape_of, text_of
from ._buffer import UnifiedBuffer
from ._devices import chosen
from ._errors import invalid
from ._manager import MemoryManager, native
from ._records import PoolLimits, PoolStatistics
from ._unimem import Device


def _numbers(limits: PoolLimits) -> list[int]:
    if not isinstance(limits, PoolLimits):
        raise invalid("limits", type(limits).__name__, "PoolLimits")
    fields = ("max_bytes", "max_buffers", "max_buffer_bytes", "max_buffers_per_class")
    return [ALL if (value := getattr(limits, name)) is None else count_of(name, value) for name in fields]


def _limits(numbers: tuple[int, ...]) -> PoolLimits:
    return PoolLimits(*(None if number == ALL else number for number in numbers))


def _interval(seconds: float) -> float:
    if not 0 <= number_of("trim_interval", seconds) <= 1e9:
        raise invalid("trim_interval", seconds, "from 0 to 1e9 seconds")
    return float(seconds)


_kinds: dict[Any, _unimem._Kind] = {}


def _kind_of(shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike, pinned: bool) -> _unimem._Kind:
    kind = _unimem._Kind(shape_of(shape), dtype_of(dtype), flag_of("pinned", pinned))
    # Only what can be a key and stays as it is.
    if type(shape) is tuple and isinstance(dtype, (type, np.dtype)):
        if len(_kinds) >= 256:
            _kinds.clear()
        _kinds[shape, dtype, pinned, type(pinned)] = kind
    return kind


class MemoryPool:
    """Whole buffers, lent again by shape, dtype and pinned-ness: acquiring an equal one gives the same buffer, contents not cleared,
    UNINITIALIZED until it is touched.

        buffer = pool.acquire((1000,), dtype=np.float32)
        try: ...
        finally: pool.release(buffer)

    or ``with pool.lend((1000,)) as buffer``. Beyond its limits a pool lets go of what it has kept longest, never of what is lent. A
    buffer whose memory is still held (by an array, a slice, a lease) is not lent again: it stays theirs. A released buffer
    raises InvalidArgument when it is used, until it is lent again. Thread-safe.
    """

    __slots__ = ("_native",)

    def __init__(
        self,
        *,
        manager: MemoryManager | None = None,
        device: Device | str | None = None,
        limits: PoolLimits = PoolLimits(max_bytes=1 << 30),
        pinned_limits: PoolLimits = PoolLimits(max_bytes=256 << 20),
        trim_interval: float = 0.0,
        zero_on_release: bool = False,
        name: str = "pooled",
        _native: _unimem._Pool | None = None,
    ) -> None:
        self._native = _native or _unimem._Pool(
            native(manager), chosen(device), _numbers(limits), _numbers(pinned_limits), _interval(trim_interval), flag_of("zero_on_release", zero_on_release),
            text_of("name", name),
        )  # fmt: skip

    def acquire(
        self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike = np.float32, *, pinned: bool = False
    ) -> UnifiedBuffer:
        """A buffer: one that was released, the last first, or else a new one, not allocated yet."""
        # The same few kinds come again and again, and checking them takes longer than a warm acquire.
        try:
            kind = _kinds[shape, dtype, pinned, type(pinned)]
            # 1000.0 is no extent and 0 no flag, though they equal 1000 and False: a TypeError, and the other key.
            for extent in shape:  # type: ignore[union-attr]
                index(extent)
        except (KeyError, TypeError):
            kind = _kind_of(shape, dtype, pinned)
        return self._native._acquire(UnifiedBuffer, kind)

    def release(self, buffer: UnifiedBuffer) -> None:
        """Takes a buffer back. Waits for nothing. InvalidArgument unless this pool has lent it and not had it back since."""
        if not isinstance(buffer, UnifiedBuffer):
            raise invalid("buffer", type(buffer).__name__, "a UnifiedBuffer")
        self._native._release(buffer)

    @contextmanager
    def lend(
        self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike = np.float32, *, pinned: bool = False
    ) -> Iterator[UnifiedBuffer]:
        """A buffer for a ``with`` block, released at its end whatever happens."""
        buffer = self.acquire(shape, dtype, pinned=pinned)
        try:
            yield buffer
        finally:
            self.release(buffer)

    def clear(self) -> None:
        """Lets go of all kept buffers. Lent ones are not touched, and may still be released."""
        self._native.clear()

    def trim(self, keep_bytes: int = 0) -> int:
        """Lets go of kept buffers, the oldest first, until they have at most `keep_bytes`; returns the bytes."""
        return self._native._trim(count_of("keep_bytes", keep_bytes))

    def configure(
        self,
        *,
        limits: PoolLimits | None = None,
        pinned_limits: PoolLimits | None = None,
        trim_interval: float | None = None,
        zero_on_release: bool | None = None,
    ) -> None:
        """Changes what is named, at once: what is kept beyond lower limits is let go."""
        pageable, pinned, interval, zero = self._native._settings()
        self._native._configure(
            list(pageable) if limits is None else _numbers(limits),
            list(pinned) if pinned_limits is None else _numbers(pinned_limits),
            interval if trim_interval is None else _interval(trim_interval),
            zero if zero_on_release is None else flag_of("zero_on_release", zero_on_release),
        )

    @property
    def limits(self) -> PoolLimits:
        """Of pageable buffers."""
        return _limits(self._native._settings()[0])

    @property
    def pinned_limits(self) -> PoolLimits:
        """Of pinned buffers."""
        return _limits(self._native._settings()[1])

    def stats(self, pinned: bool | None = None) -> PoolStatistics:
        """Of pageable and pinned buffers together, or of one of the two."""
        return PoolStatistics(**(self._native._stats() if pinned is None else self._native._stats_of(pinned)))

    @property
    def pool_size(self) -> int:
        """Kept buffers."""
        return self._native.pool_size

    @property
    def total_bytes(self) -> int:
        """Bytes of the elements of kept buffers."""
        return self._native.total_bytes

    def __repr__(self) -> str:
        s = self.stats()
        return f"<unimem.MemoryPool: {s.active_buffers} lent, {s.pooled_buffers} kept, {s.hit_rate:.0%} hits>"

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()


_shared: MemoryPool | None = None


def get_memory_pool() -> MemoryPool:
    """The pool of the process, on the default device."""
    global _shared
    if _shared is None:
        _shared = MemoryPool(_native=_unimem._Pool())
    return _shared


def _forget_parents() -> None:
    global _shared
    _shared = None


os.register_at_fork(after_in_child=_forget_parents)  # a child has a pool of its own
