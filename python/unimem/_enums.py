"""The enumerations, with the values of the documents."""

from __future__ import annotations

import enum

from . import _unimem
from ._errors import invalid


class _Named(enum.Enum):
    def __str__(self) -> str:
        return self.name


class BufferState(_Named):
    """Where the current contents of a buffer are, seen from the host against the union of its devices."""

    UNINITIALIZED = "uninitialized"
    """No data: never touched and without storage, discarded, or lost altogether."""
    HOST_ONLY = "host_only"
    """The data is on the host alone, and nothing written there waits to be synchronized."""
    DEVICE_ONLY = "device_only"
    """The data is on devices alone, and nothing written there waits to be synchronized."""
    SYNCHRONIZED = "synchronized"
    """The host and at least one device hold all of it."""
    HOST_DIRTY = "host_dirty"
    """The host holds bytes written since the last synchronization."""
    DEVICE_DIRTY = "device_dirty"
    """A device holds bytes written since the last synchronization."""
    MIXED = "mixed"
    """Each side holds newer bytes than the other, in disjoint ranges."""


class Tracking(_Named):
    """Who notices that the host side was written."""

    ACCESS = "access"
    """``.host`` notices what is written through it. C code that writes through its address is not seen."""
    PAGES = "pages"
    """The system tells which pages were written, by any code; UnsupportedOperation where it cannot. Buffers below
    64 KiB, and memory shared with a device, fall back to ACCESS: ``buffer.tracking`` says what serves."""
    MANUAL = "manual"
    """Only ``mark_*`` and the library's own writes count."""


class Location(_Named):
    """Which kind of memory an allocation is taken from."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"
    UNIFIED = "unified"


class MapMode(_Named):
    """What a mapping is for."""

    READ = "read"
    """Look: the elements are current, nothing counts as written."""
    WRITE = "write"
    """Change some of them: they are current, and all count as written at the end."""
    READ_WRITE = "read_write"
    """The same."""
    DISCARD = "discard"
    """Overwrite all of them: nothing is brought in."""


class Placement(_Named):
    """Where an allocation should live. AUTOMATIC lets the manager decide; what it decided is never AUTOMATIC."""

    AUTOMATIC = "automatic"
    DEVICE_LOCAL = "device_local"
    HOST_PINNED = "host_pinned"
    HOST_ACCESSIBLE = "host_accessible"
    UNIFIED = "unified"
    READ_ONLY_OPTIMIZED = "read_only_optimized"
    WRITE_ONLY_OPTIMIZED = "write_only_optimized"
    STREAMING_OPTIMIZED = "streaming_optimized"
    RANDOM_ACCESS_OPTIMIZED = "random_access_optimized"


class AccessPattern(_Named):
    """How an allocation will be used: a hint for its placement."""

    UNKNOWN = "unknown"
    SEQUENTIAL = "sequential"
    RANDOM = "random"
    STREAMING = "streaming"
    STRIDED = "strided"
    GATHER = "gather"
    SCATTER = "scatter"
    READ_ONLY = "read_only"
    WRITE_ONLY = "write_only"
    READ_WRITE = "read_write"


class PlacementRule(_Named):
    """Why a placement was chosen: `PlacementDecision.why()` says it in a sentence."""

    ASKED = "asked"
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    READ_ONLY = "read_only"
    SHARED_MEMORY = "shared_memory"
    SCATTERED = "scattered"
    DEVICE_FULL = "device_full"
    NEVER_ON_DEVICE = "never_on_device"
    NEVER_ON_HOST = "never_on_host"
    ONLY_READ = "only_read"
    COPIED_OFTEN = "copied_often"
    SELDOM_COPIED = "seldom_copied"


class Optimization(_Named):
    """What `MemoryManager.optimize` does to a buffer."""

    PIN = "pin"
    """Locks the host memory of what is copied again and again, where it stands."""
    RELEASE = "release"
    """Gives back a device's copy that is not about to be used, and that the host has as well."""
    PLACE = "place"
    """Brings to a device what is about to be used there, and was evicted."""


class PressureLevel(_Named):
    """How full one location of a device is."""

    NONE = "none"
    MODERATE = "moderate"
    """From three quarters of the limit on."""
    HIGH = "high"
    """From 85 percent on."""
    CRITICAL = "critical"
    """From 95 percent on."""


class LinkSource(_Named):
    """Where the figures of a link come from."""

    CONFIGURED = "configured"
    """The device was told what its links are: exact."""
    MEASURED = "measured"
    """Copies were timed, now or by an earlier process on the same hardware."""
    ESTIMATED = "estimated"
    """It could not be measured, as the log says."""


class Advice(_Named):
    """What a driver that moves memory by itself may be told of its use. Hints: none changes a result, or moves a byte when it is given."""

    READ_MOSTLY = "read_mostly"
    """Read far more often than written, so that every place may keep a copy."""
    PREFERRED_LOCATION = "preferred_location"
    """To stay at one place, and be reached from others over the link, rather than to move."""
    ACCESSED_BY = "accessed_by"
    """One place will use it, and shall be able to reach it wherever it is."""


def number_of(member: enum.Enum) -> int:
    """Its number in C++: the members stand in the same order there."""
    return list(type(member)).index(member)


def number_in(kind: type[enum.Enum], name: str, value: object) -> int:
    """The same of an argument, which must be a member of `kind`."""
    if not isinstance(value, kind):
        raise invalid(name, repr(value), f"a member of unimem.{kind.__name__}")
    return number_of(value)


_KINDS: dict[str, list[enum.Enum]] = {kind.__name__: list(kind) for kind in (Location, Placement, PlacementRule, Optimization, PressureLevel, LinkSource)}


def member(kind: str, number: int) -> enum.Enum:
    """The member with a number of C++'s."""
    return _KINDS[kind][number]


_unimem._set_states(list(BufferState))
