"""Where a worker keeps results: buffers stay objects, whose bytes the manager moves to files; others go as Dask has it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from distributed.spill import SpillBuffer, SpilledSize  # type: ignore[import-not-found,unused-ignore]

from . import _unimem
from ._arguments import size_of
from ._dask_limits import checked_limits, set_limits
from ._elements import Elements
from ._enums import Location
from ._errors import UnsupportedOperation
from ._manager import MemoryManager, default_manager

_logger = logging.getLogger("unimem.dask")

# Smaller buffers stay in memory (`SpillOptions::min_bytes`): each would take a file of its own.
_SMALLEST_SPILLED = 64 << 10


def buffers_in(value: object) -> list[Elements]:
    """The buffers that a result is, or that a tuple or list of results has."""
    if isinstance(value, Elements):
        return [value]
    if type(value) in (tuple, list):
        return [one for part in value for one in buffers_in(part)]  # type: ignore[attr-defined]
    return []


def _is_ours(value: object) -> bool:
    """Whether all of it is buffers whose memory the manager may move to a file."""
    if isinstance(value, Elements):
        return value.nbytes >= _SMALLEST_SPILLED and value._may_spill
    return type(value) in (tuple, list) and bool(value) and all(_is_ours(part) for part in value)  # type: ignore[attr-defined]


def _spilling_manager(directory: str) -> MemoryManager:
    """The default manager, which spills there if it is made now. What it spills has no names in the folder."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    _unimem._spill_by_default_in(directory)
    manager = default_manager()
    if not manager._native._spills:
        reason = "it was made before, without a folder: name one by UNIMEM_SPILL, or let workers have processes of their own"
        raise UnsupportedOperation._of(f"spilling is not supported on the default manager of this process: {reason}", "spilling", "the default manager", reason)
    return manager


class Storage(MutableMapping[Any, Any]):
    """What `storage` makes. Used by the worker's event loop alone, as Dask's own is."""

    def __init__(self, directory: str, manager: MemoryManager, target: int | None) -> None:
        self._manager = manager
        self._target = target
        self._ours: dict[Any, Any] = {}  # the one used last is the last
        self._others = SpillBuffer(os.path.join(directory, "storage"), target=sys.maxsize if target is None else target)

    def bound_others(self, memory: Any) -> None:
        """For the plugin, which knows what the worker may have: what Dask would begin to spill at, unless `storage` was told."""
        fraction = memory.memory_target_fraction or memory.memory_spill_fraction
        if self._target is None and memory.memory_limit and fraction:
            self._others.n = int(memory.memory_limit * fraction)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_ours(value):
            if key in self._others:
                del self._others[key]
            self._ours.pop(key, None)
            self._ours[key] = value
            return
        self._ours.pop(key, None)
        # What the manager's buffers have is missing for others.
        self._others.offset = sum(one.pool.active_bytes for one in self._manager.statistics.pools if one.device == "cpu")
        self._others[key] = value

    def __getitem__(self, key: Any) -> Any:
        if key in self._ours:
            value = self._ours[key] = self._ours.pop(key)
            return value
        return self._others[key]

    def __delitem__(self, key: Any) -> None:
        if key in self._ours:
            del self._ours[key]
        else:
            del self._others[key]

    def __contains__(self, key: object) -> bool:
        return key in self._ours or key in self._others

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._ours)  # which a look at a value puts in another order
        yield from self._others

    def __len__(self) -> int:
        return len(self._ours) + len(self._others)

    def in_memory(self) -> Iterable[Any]:
        """The objects that there are now."""
        return [*self._ours.values(), *self._others.fast.values()]

    # What Dask's memory monitor asks for

    @property
    def fast(self) -> bool:
        """Whether there is anything that could be evicted."""
        return bool(self._ours) or bool(self._others.fast)

    def evict(self) -> int:
        """Moves to files the result that was used longest ago: of buffers the bytes, of which the objects stay. Returns the bytes that became
        free; -1 where nothing can go."""
        for value in list(self._ours.values()):
            try:
                given = sum(one._spill() for one in buffers_in(value))
            except Exception:
                _logger.exception("a buffer was not spilled, and stays in memory")
                continue
            if given:
                self._manager.pool("cpu", Location.HOST).trim()
                return given
        return int(self._others.evict()) if self._others.fast else -1

    @property
    def slow(self) -> Mapping[Any, Any]:
        """Results of others that are in Dask's files. Buffers are objects in memory, wherever their bytes are."""
        return self._others.slow  # type: ignore[no-any-return,unused-ignore]

    @property
    def spilled_total(self) -> Any:
        """For Dask's figures: what is in files, of buffers and of others."""
        in_files = self._manager.statistics.spill_file_bytes
        return self._others.spilled_total + SpilledSize(in_files, in_files)

    @property
    def cumulative_metrics(self) -> Any:
        """Dask's own, of others."""
        return self._others.cumulative_metrics


def storage(worker_local_directory: str, *, limits: Mapping[str, int | str] | None = None, target: int | str | None = None) -> Storage:
    """For ``Worker(data=unimem.dask.storage)``, or ``data=(unimem.dask.storage, {"limits": {"host": "2GiB"}})``. Results that are buffers of the
    worker's, or tuples and lists of them, stay objects, and the default manager moves what has no room within its limits: from a device to the
    host, and from there to files without names in the worker's folder. Other results go to files there as Dask has it, when all of
    them and the buffers on the host have `target` bytes: with `MemoryPlugin`, by default what Dask's configuration says.

    `limits` as of `MemoryPlugin`. UnsupportedOperation where the process's default manager was made before and spills nowhere."""
    checked = checked_limits({} if limits is None else limits)
    bytes = None if target is None else size_of("target", target)
    manager = _spilling_manager(os.path.join(worker_local_directory, "unimem"))
    set_limits(manager, checked)
    return Storage(worker_local_directory, manager, bytes)
