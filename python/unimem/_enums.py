"""The enumerations, with the values of the documents."""

from __future__ import annotations

import enum

from . import _unimem


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
    """The system tells which pages were written, whoever wrote them; UnsupportedOperation where it cannot. Buffers below
    64 KiB, and memory shared with a device, fall back to ACCESS: ``buffer.tracking`` says what serves."""
    MANUAL = "manual"
    """Only ``mark_*`` and the library's own writes count."""


class Location(_Named):
    """Which kind of memory an allocation is taken from."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"
    UNIFIED = "unified"


def number_of(member: enum.Enum) -> int:
    """Its number in C++: the members stand in the same order there."""
    return list(type(member)).index(member)


_unimem._set_states(list(BufferState))
