"""What the library reports, as immutable values: a look at one moment."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

from ._tables import pairs
from ._unimem import Device


def _plain(value: object) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Record):
        return value._values()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value.id if isinstance(value, Device) else value


class Record:
    """What every record can do: be read by programs, and be looked at in a notebook."""

    __slots__ = ()

    def _values(self) -> dict[str, Any]:
        return {one.name: _plain(getattr(self, one.name)) for one in fields(cast(Any, self))}

    def to_json(self) -> str:
        """One JSON object on one line, keys as the attributes are named and in their order, sizes in bytes."""
        return json.dumps(self._values())

    def _repr_html_(self) -> str:
        return pairs(type(self).__name__, [(one.name, getattr(self, one.name)) for one in fields(cast(Any, self))])


@dataclass(frozen=True, slots=True)
class BufferStatistics(Record):
    """What moved for one buffer since it was made: bytes, and the copies that carried them. Switches between sides that
    share storage move nothing and count nothing."""

    host_to_device_bytes: int
    host_to_device_copies: int
    device_to_host_bytes: int
    device_to_host_copies: int
    device_to_device_bytes: int
    device_to_device_copies: int
    conflicting_marks: int
    unmarked_writes: int
    staged_copies: int
    unstaged_copies: int
    host_to_device_nanoseconds: int
    device_to_host_nanoseconds: int
    device_to_device_nanoseconds: int
    untimed_copies: int


@dataclass(frozen=True, slots=True)
class TransferCounters(Record):
    """What a device has carried out, for all users and as long as the process lives: take the difference of two looks."""

    host_to_device_bytes: int
    host_to_device_copies: int
    device_to_host_bytes: int
    device_to_host_copies: int
    device_to_device_bytes: int
    device_to_device_copies: int
    host_to_device_nanoseconds: int
    device_to_host_nanoseconds: int
    device_to_device_nanoseconds: int
    untimed_copies: int

    def since(self, earlier: TransferCounters) -> TransferCounters:
        """What has been carried out after an earlier look."""
        return TransferCounters(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))


@dataclass(frozen=True, slots=True)
class LinkStatistics(Record):
    """What moved from one place to another for one buffer. Places are device ids, and "host"."""

    source: str
    target: str
    copies: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceInfo(Record):
    """What does not change while a device exists. Sizes in bytes."""

    name: str
    vendor: str
    driver: str
    total_bytes: int
    max_allocation: int
    alignment: int
    compute_units: int
    is_gpu: bool
    integrated: bool
    doubles: bool
    atomics64: bool
    max_group_items: int
    group_memory_bytes: int
    compiles_source: bool
    runs_host_form: bool
    limited_by: str


class MemoryInfo(NamedTuple):
    """Memory of a device at one moment, bytes: ``free, total = …`` works, and so do the names."""

    free: int
    total: int


class UnavailableBackend(NamedTuple):
    """A backend that has no device here, and why."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolLimits(Record):
    """How much a buffer pool keeps; None: as much as it likes. Bytes are those of the buffers' elements."""

    max_bytes: int | None = None
    max_buffers: int | None = None
    max_buffer_bytes: int | None = None
    max_buffers_per_class: int | None = None


@dataclass(frozen=True, slots=True)
class PoolStatistics(Record):
    """What a buffer pool has done. ``hits + misses`` is the number of acquires."""

    hits: int
    misses: int
    released: int
    let_go: int
    evicted: int
    refused: int
    active_buffers: int
    pooled_buffers: int
    pooled_bytes: int
    peak_pooled_bytes: int

    @property
    def hit_rate(self) -> float:
        """Hits per acquire, 0 when there was none."""
        acquires = self.hits + self.misses
        return self.hits / acquires if acquires else 0.0

    def _values(self) -> dict[str, Any]:
        return Record._values(self) | {"hit_rate": self.hit_rate}

    def _repr_html_(self) -> str:
        return pairs("PoolStatistics", self._values().items())
