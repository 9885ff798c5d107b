"""What a worker is given for its memory: limits, figures for the dashboard, a report of what it leaves behind."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin  # type: ignore[import-not-found,unused-ignore]

from . import _dask_messages as messages
from ._arguments import flag_of
from ._dask_limits import checked_limits, set_limits
from ._dask_storage import Storage, buffers_in
from ._manager import MemoryManager, default_manager

_logger = logging.getLogger("unimem.dask")


def figures(manager: MemoryManager) -> dict[str, Any]:
    """What the dashboard's table of workers shows: numbers, by names that nothing else has. And `unimem_bytes`, by place."""
    statistics = manager.statistics
    live: dict[str, int] = {}
    for one in statistics.pools:
        live[f"{one.device} {one.location.value}"] = one.pool.active_bytes
    on_host = sum(one.pool.active_bytes for one in statistics.pools if one.device == "cpu")
    moved = sum(one.counts.bytes_in + one.counts.bytes_out for one in manager.usage().places if one.device != "cpu")
    handed = messages.transfers()
    return {
        "unimem_host_bytes": on_host,
        "unimem_device_bytes": statistics.active_bytes - on_host,
        "unimem_moved_bytes": moved,
        "unimem_spilled_bytes": statistics.spilled_bytes,
        "unimem_restored_bytes": statistics.restored_bytes,
        "unimem_spill_file_bytes": statistics.spill_file_bytes,
        "unimem_handed_over_bytes": handed.handed_over_bytes,
        "unimem_opened_bytes": handed.opened_bytes,
        "unimem_bytes": live,
    }


FIGURES = tuple(
    f"unimem_{one}bytes" for one in ("host_", "device_", "moved_", "spilled_", "restored_", "spill_file_", "handed_over_", "opened_", "")
)


class _Seen:
    """Dask asks for each figure by itself: one look serves those of one heartbeat."""

    def __init__(self, manager: MemoryManager) -> None:
        self._manager = manager
        self._figures: dict[str, Any] = {}
        self._until = 0.0

    def figure(self, name: str) -> Any:
        now = monotonic()
        if now >= self._until:
            self._figures = figures(self._manager)
            self._until = now + 0.05
        return self._figures[name]


class MemoryPlugin(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """Bounds the memory of a worker's buffers, which is that of its default manager, and tells of it.

        client.register_plugin(unimem.dask.MemoryPlugin(limits={"host": "2GiB", "device": "1GiB"}))

    `limits`: of all host memory ("host"), of the default device where that has memory of its own ("device"), and of devices by their ids. They
    hold for each worker. InvalidArgument here for what is no size; at the worker NotFound for a device that it does not have and
    InvalidArgument for less than is in use: no limit has changed then. `shared`: buffers of 256 KiB and more that the worker makes stand in
    memory that other processes can map (``UnifiedBuffer(shared=True)``), and workers of one host hand that over instead of bytes. Such memory is
    taken anew for each buffer and is not spilled, and as by Dask's own rules what a task has returned is not written to any more. `report_leaks`:
    when the worker closes, buffers that are alive and not among its results are named in a warning to the logger "unimem.dask".

    The worker's metrics have ``unimem_host_bytes`` and more (docs/dask.md), which the dashboard shows."""

    name = "unimem"

    def __init__(self, limits: Mapping[str, int | str] | None = None, *, shared: bool = False, report_leaks: bool = True) -> None:
        self.limits = checked_limits({} if limits is None else limits)
        self.shared = flag_of("shared", shared)
        self.report_leaks = flag_of("report_leaks", report_leaks)

    def setup(self, worker: Any) -> None:
        """For Dask."""
        import unimem.dask  # noqa: F401  registers what this process is to read

        manager = default_manager()
        set_limits(manager, self.limits)
        if isinstance(worker.data, Storage):
            worker.data.bound_others(worker.memory_manager)
        seen = _Seen(manager)
        for name in FIGURES:
            worker.metrics[name] = lambda _, name=name: seen.figure(name)
        if self.shared:
            _take_part(worker)

    def teardown(self, worker: Any) -> None:
        """For Dask."""
        for name in FIGURES:
            worker.metrics.pop(name, None)
        if self.shared:
            messages.handover.end(id(worker))
        if self.report_leaks:
            _report_leaks(default_manager())


def _take_part(worker: Any) -> None:
    """Says to each worker that it asks for data where it is. Dask passes what is said at the handshake to who serializes."""

    def say(**more: str) -> None:
        said = {**(worker.rpc.connection_args.get("handshake_overrides") or {}), **more}
        if not more:
            said.pop(messages.HANDSHAKE, None)
        worker.rpc.connection_args = {**worker.rpc.connection_args, "handshake_overrides": said}

    say(**{messages.HANDSHAKE: messages.handover.begin(id(worker), say)})


def _in_memory(data: Any) -> list[Any]:
    """Of Dask's own mappings: those to files would read them all."""
    return list((data.fast if hasattr(data, "fast") else data).values())


def _report_leaks(manager: MemoryManager) -> None:
    gc.collect()
    kept: set[int] = set()
    for worker in list(sys.modules["distributed.worker"].Worker._instances):  # those of one process have one manager
        data = getattr(worker, "data", {})
        for value in data.in_memory() if isinstance(data, Storage) else _in_memory(data):
            kept.update(one._number for one in buffers_in(value))
    report = manager.leak_report()
    left = [one for one in report.allocations if one.buffer not in kept]
    if left:
        names = ", ".join(f"{one.name or 'unnamed'} ({one.bytes} bytes, {one.location.value} of {one.device.id})" for one in left[:20])
        more = f", and {len(left) - 20} more" if len(left) > 20 else ""
        _logger.warning("a worker closes with %d buffers alive that are none of its results: %s%s", len({one.buffer for one in left}), names, more)
