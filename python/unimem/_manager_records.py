"""What a manager tells of its memory: looks at one moment, as immutable values. Names and fields are those of C++,
whose own functions make the texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from . import _unimem
from ._arguments import count_of
from ._enums import LinkSource, Location, Optimization, Placement, PlacementRule, PressureLevel
from ._records import Record
from ._tables import grid, pairs
from ._unimem import Device


@dataclass(frozen=True, slots=True)
class SizeClassStatistics(Record):
    """What one of the 21 documented size classes has seen: class 0 is up to 4 KiB, class k up to 4 KiB · 2^k, class 20 everything
    above."""

    allocations: int
    hits: int
    active_bytes: int
    pooled_bytes: int


@dataclass(frozen=True, slots=True)
class BlockStatistics(Record):
    """The blocks of one device and location. ``pool_hits + pool_misses == total_allocations``, and ``active_bytes +
    total_pooled_bytes + slack_bytes == reserved_bytes``."""

    total_allocations: int
    pool_hits: int
    pool_misses: int
    total_pooled_bytes: int
    active_allocations: int
    active_bytes: int
    peak_active_bytes: int
    slack_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    failed_allocations: int
    seizures: int
    trims: int
    waits: int
    size_classes: tuple[SizeClassStatistics, ...]

    @property
    def hit_rate(self) -> float:
        """Hits per acquire, 0 when there was none."""
        return self.pool_hits / self.total_allocations if self.total_allocations else 0.0

    def to_json(self) -> str:
        """One JSON object, as the command line prints it."""
        return _unimem._block_statistics_json(self)

    def _values(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.to_json()))

    def _repr_html_(self) -> str:
        rows = [(name, getattr(self, name)) for name in (*self.__slots__[:-1], "hit_rate")]
        return pairs("BlockStatistics", rows)


@dataclass(frozen=True, slots=True)
class PoolFragmentation(Record):
    """Free memory inside of a pool, bytes."""

    largest_free_block: int
    total_free: int

    @property
    def fragmentation_ratio(self) -> float:
        """1 − largest / total, 0 when nothing is free."""
        return 1.0 - self.largest_free_block / self.total_free if self.total_free else 0.0


@dataclass(frozen=True, slots=True)
class PoolDefragmentation(Record):
    """What defragmenting did: bytes of free memory moved by their mappings, blocks in use that were copied."""

    bytes_moved: int
    blocks_moved: int
    bytes_copied: int
    largest_free_before: int
    largest_free_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PoolUsage(Record):
    """One device and location's share of a manager's memory."""

    device: str
    location: Location
    pool: BlockStatistics


@dataclass(frozen=True, slots=True)
class GlobalMemoryStatistics(Record):
    """All memory of one manager. The totals are the sums over `pools`."""

    total_allocations: int
    active_allocations: int
    active_bytes: int
    pooled_bytes: int
    reserved_bytes: int
    reclaims: int
    failed_reclaims: int
    reclaimed_bytes: int
    host_reclaims: int
    failed_host_reclaims: int
    host_reclaimed_bytes: int
    spills: int
    spilled_bytes: int
    restores: int
    restored_bytes: int
    direct_reads: int
    direct_read_bytes: int
    spill_files: int
    spill_file_bytes: int
    file_reads: int
    file_read_bytes: int
    file_direct_bytes: int
    file_uring_bytes: int
    file_mapped_bytes: int
    file_writes: int
    file_written_bytes: int
    cache_trims: int
    defragmentations: int
    waits: int
    refusals: int
    refused_pinnings: int
    missing_unified: int
    pressure_calls: int
    failed_pressure_calls: int
    merged_crossings: int
    pools: tuple[PoolUsage, ...]

    def text(self) -> str:
        """A table of the pools, and what was done to make room."""
        return _unimem._statistics_text(self)

    def __str__(self) -> str:
        return self.text()

    def to_json(self) -> str:
        """One JSON object with a `schema`, pools and size classes included."""
        return _unimem._statistics_json(self)

    def to_prometheus(self) -> str:
        """Prometheus' text format (0.0.4), for a program to serve at its own ``/metrics``. UnsupportedOperation where the library was
        built without prometheus-cpp."""
        return _unimem._statistics_prometheus(self)

    def _repr_html_(self) -> str:
        totals = [(name, getattr(self, name)) for name in self.__slots__[:-1]]
        names = ("device", "location", "active_bytes", "total_pooled_bytes", "reserved_bytes", "hit_rate")
        rows = [(one.device, one.location.value, *(getattr(one.pool, name) for name in names[2:])) for one in self.pools]
        return pairs("GlobalMemoryStatistics", totals) + grid("pools", names, rows)


@dataclass(frozen=True, slots=True)
class UsageCounts(Record):
    """What the memory of some buffers has come to. Bytes are those that buffers asked for; ``peak_bytes`` is the most there was at one
    time."""

    allocations: int
    releases: int
    live_bytes: int
    peak_bytes: int
    allocated_bytes: int
    seconds_alive: float
    longest_seconds: float
    copies_in: int
    bytes_in: int
    copies_out: int
    bytes_out: int
    host_reads: int
    host_writes: int
    device_reads: int
    device_writes: int

    @property
    def live(self) -> int:
        """Allocations that have not been given back."""
        return self.allocations - self.releases


@dataclass(frozen=True, slots=True)
class UsageLine(Record):
    """What buffers of one name have at one location of one device."""

    device: str
    location: Location
    name: str
    counts: UsageCounts


@dataclass(frozen=True, slots=True)
class PlaceUsage(Record):
    """What all buffers have at one location of one device."""

    device: str
    location: Location
    counts: UsageCounts


@dataclass(frozen=True, slots=True)
class Usage(Record):
    """The memory of all buffers of a manager at one moment, most live bytes first. Of everything but peaks the lines of a place sum to
    the place, and the places to the total."""

    lines: tuple[UsageLine, ...]
    places: tuple[PlaceUsage, ...]
    total: UsageCounts

    def text(self) -> str:
        """A table for people."""
        return _unimem._usage_text(self)

    def to_json(self) -> str:
        """One JSON object with a `schema`."""
        return _unimem._usage_json(self)

    def to_prometheus(self) -> str:
        """Prometheus' text format, labelled by device, location and name. UnsupportedOperation where the library was built without
        prometheus-cpp."""
        return _unimem._usage_prometheus(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        names = ("device", "location", "name", "live", "live_bytes", "peak_bytes", "allocations", "bytes_in", "bytes_out")
        rows = [(one.device, one.location.value, one.name, *(getattr(one.counts, name) for name in names[3:])) for one in self.lines]
        return grid("Usage", names, rows)


@dataclass(frozen=True, slots=True)
class LiveAllocation(Record):
    """One piece of memory of a buffer. `buffer` is the buffer's number in this process; `stack` where it was taken, the innermost call
    first, as `describe_address` tells, empty where it was not captured."""

    buffer: int
    device: Device
    location: Location
    bytes: int
    name: str
    age_seconds: float
    stack: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeakReport(Record):
    """What has not been given back, the largest first. Without allocations it is false."""

    allocations: tuple[LiveAllocation, ...]
    bytes: int

    def __bool__(self) -> bool:
        return bool(self.allocations)

    def text(self, most: int = 100) -> str:
        """A line that sums up, then each allocation, at most `most`. Nothing at all if nothing is live."""
        return _unimem._leaks_text(self, count_of("most", most))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        names = ("name", "device", "location", "bytes", "age_seconds")
        rows = [(one.name, one.device.id, one.location.value, one.bytes, round(one.age_seconds, 3)) for one in self.allocations]
        return grid(f"LeakReport: {_unimem.format_size(self.bytes)}", names, rows)


@dataclass(frozen=True, slots=True)
class MemoryLimit(Record):
    """The most that a manager may reserve at one location of a device: the device's capacity where nothing less is set."""

    device: str
    location: Location
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MemorySnapshot(Record):
    """What a manager's memory has come to. Its parts are looked at one after the other, each at a moment of its own; `live` is what
    buffers have not given back, `limits` those of every place in ``statistics.pools``."""

    statistics: GlobalMemoryStatistics
    usage: Usage
    live: LeakReport
    limits: tuple[MemoryLimit, ...]

    def text(self) -> str:
        """For people: its parts, one below the other."""
        return _unimem._snapshot_text(self)

    def to_json(self) -> str:
        """One JSON object with a `schema`, which is what UNIMEM_REPORT writes."""
        return _unimem._snapshot_json(self)

    def to_prometheus(self) -> str:
        """Prometheus' text format of statistics, usage and limits. UnsupportedOperation where the library was built without
        prometheus-cpp."""
        return _unimem._snapshot_prometheus(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        rows = [(one.device, one.location.value, one.limit_bytes) for one in self.limits]
        parts = (self.statistics, self.usage, self.live)
        return "".join(one._repr_html_() for one in parts) + grid("limits", ("device", "location", "limit_bytes"), rows)


@dataclass(frozen=True, slots=True)
class PressureChange(Record):
    """One crossing of what fills a location, over as many levels as it went. `device` is the cpu for memory of the host's."""

    device: Device
    location: Location
    before: PressureLevel
    now: PressureLevel
    live_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Link(Record):
    """One direction of a way that bytes take between two memories: "host", or a device's id. `via_host`: two copies by turns."""

    source: str
    target: str
    bytes_per_second: float
    latency_seconds: float
    via_host: bool
    known_by: LinkSource

    def seconds(self, bytes: int) -> float:
        """What a copy of so many bytes takes by itself."""
        return self.latency_seconds + bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class RecordedUse(Record):
    """What some buffers were used for, all of them together."""

    buffers: int
    host_reads: int
    host_writes: int
    device_reads: int
    device_writes: int
    uploads: int
    uploaded_bytes: int
    downloads: int
    downloaded_bytes: int
    seconds_alive: float


@dataclass(frozen=True, slots=True)
class PlacementDecision(Record):
    """Where something goes, and why. `wanted` is what was chosen before the machine was asked whether it has such a thing."""

    asked: Placement
    placement: Placement
    location: Location
    rule: PlacementRule
    wanted: Placement
    bytes: int
    available_bytes: int
    pageable_seconds: float
    pinned_seconds: float
    use: RecordedUse

    @property
    def degraded(self) -> bool:
        """Whether the machine lacks what was wanted, so that something else serves."""
        return self.wanted is not self.placement

    def why(self) -> str:
        """One sentence for people, with the figures that decided."""
        return _unimem._decision_why(self)


@dataclass(frozen=True, slots=True)
class PlacementRecommendations(Record):
    """What new buffers should ask for, by what they are. `hints` says what deviates from the documented table and why, what is short,
    and what was refused."""

    small_buffers: Placement
    medium_buffers: Placement
    large_buffers: Placement
    frequently_accessed: Placement
    read_only: Placement
    hints: tuple[str, ...]

    def text(self) -> str:
        """One line for each row, and one for each hint."""
        return _unimem._recommendations_text(self)

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class OptimizationStep(Record):
    """What was done to one buffer; 0 bytes: nothing. `deferred`: its host memory is locked when it is next taken."""

    what: Optimization
    buffer: int
    name: str
    device: Device | None
    bytes: int
    seconds_saved: float
    deferred: bool


@dataclass(frozen=True, slots=True)
class OptimizationReport(Record):
    """What `MemoryManager.optimize` has done."""

    steps: tuple[OptimizationStep, ...]
    pinned_bytes: int
    released_bytes: int
    placed_bytes: int
    trimmed_bytes: int
    seconds_saved: float

    def text(self) -> str:
        """A line for each step, and one that sums up."""
        return _unimem._optimization_text(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        names = ("what", "name", "device", "bytes", "seconds_saved")
        rows = [(one.what.value, one.name, one.device.id if one.device else "", one.bytes, one.seconds_saved) for one in self.steps]
        sums = ("pinned_bytes", "released_bytes", "placed_bytes", "trimmed_bytes", "seconds_saved")
        return grid("OptimizationReport", names, rows) + pairs("in all", [(name, getattr(self, name)) for name in sums])
