"""Buffers by id: what one part of a program publishes, another opens, knowing the id alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import ALL, count_of, dtype_of, flag_of, text_of
from ._buffer import UnifiedBuffer
from ._elements import BufferSlice
from ._errors import invalid
from ._records import Record
from ._subscriptions import PeerDeathSubscription
from ._tables import grid

_TAGS = ["", "u1", "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


@dataclass(frozen=True, slots=True)
class SharedBuffer(Record):
    """One published buffer, as `BufferRegistry.list` tells of it."""

    id: str
    name: str
    buffer: str
    element: str
    shape: tuple[int, ...]
    nbytes: int
    opened: int
    holders: int


@dataclass(frozen=True, slots=True)
class SharingProcess(Record):
    """A process that holds a shared buffer: `serves`, so that others get it from this one; `alive`, or it has ended, and no other has
    found that yet; how much it reads and writes now, which others wait for."""

    pid: int
    command: str
    alive: bool
    serves: bool
    reading_bytes: int
    writing_bytes: int


@dataclass(frozen=True, slots=True)
class SharedWithOthers(Record):
    """A buffer that processes have published for one another. `lost_bytes`: a process was writing them when it was killed, and none has
    since. `trouble`: why it is not known who holds it, but for those that serve it; empty if it is."""

    id: str
    name: str
    buffer: str
    element: str
    shape: tuple[int, ...]
    nbytes: int
    holders: tuple[SharingProcess, ...]
    lost_bytes: int
    trouble: str


@dataclass(frozen=True, slots=True)
class SentAndNotReceived(Record):
    """What one process has sent, as multiprocessing sends buffers, and no other has received yet."""

    pid: int
    command: str
    copies: int
    copied_bytes: int
    shared: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class SharedOnThisHost(Record):
    """Who shares what. `unanswered`: processes that did not answer in time, or oddly, each with what is wrong."""

    buffers: tuple[SharedWithOthers, ...]
    sent: tuple[SentAndNotReceived, ...]
    unanswered: tuple[str, ...]

    def _repr_html_(self) -> str:
        names = ("id", "name", "buffer", "element", "shape", "nbytes", "lost_bytes")
        rows = [(*(getattr(one, name) for name in names), ", ".join(f"{by.pid} {by.command}" for by in one.holders)) for one in self.buffers]
        return grid("SharedOnThisHost", (*names, "holders"), rows)


@dataclass(frozen=True, slots=True)
class PeerDeath(Record):
    """A process has ended that held buffers which this one holds, too. `buffers`: the ids here of what it held; `lost_bytes`: what it was
    writing, which is DataLost until it is written."""

    pid: int
    buffers: tuple[str, ...]
    lost_bytes: int


def shared_on_this_host() -> SharedOnThisHost:
    """What this user's processes on this host share now, as ``unimem ps`` prints it. Asks all of them at the same time, two seconds at
    most, and takes part in nothing. Ctrl-C ends it. IoError where this process may open no more descriptors."""
    buffers, sent, unanswered = _unimem._shared_on_this_host()
    listed = []
    for id, name, buffer, element, shape, nbytes, holders, lost_bytes, trouble in buffers:
        held = tuple(SharingProcess(*one) for one in holders)
        listed.append(SharedWithOthers(id, name, buffer, element, shape, nbytes, held, lost_bytes, trouble))
    return SharedOnThisHost(tuple(listed), tuple(SentAndNotReceived(*one) for one in sent), unanswered)


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Elements of a published buffer, named in a message: what is sent instead of the data. It keeps nothing alive and says nothing
    that is believed: everything is checked when it is resolved. `count` None: to the end. `bytes(ref)` is the 40-byte wire form of
    docs/sharing.md, which C++ reads as well."""

    buffer_id: str
    offset: int = 0
    count: int | None = None
    element: int = 0

    def resolve(self, dtype: npt.DTypeLike | None = None) -> BufferSlice:
        """The elements it names, without a copy. NotFound for an unknown id, InvalidArgument for elements outside the buffer or of
        another type. `dtype` may be left out where the reference says it (`BufferRegistry.refer`)."""
        if dtype is None and not (0 < self.element < len(_TAGS)):
            published = registry().shared(self.buffer_id)
            dtype = published
        wanted = dtype_of(_TAGS[self.element] if dtype is None else dtype)
        return cast(
            BufferSlice,
            _unimem._resolve(
                BufferSlice, text_of("buffer_id", self.buffer_id), count_of("offset", self.offset),
                ALL if self.count is None else count_of("count", self.count), self.element, wanted,
            ),
        )  # fmt: skip

    def __bytes__(self) -> bytes:
        return _unimem._ref_to_wire(
            text_of("buffer_id", self.buffer_id), count_of("offset", self.offset), ALL if self.count is None else count_of("count", self.count), self.element
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, wire: bytes) -> BufferRef:
        """Reads the wire form; InvalidArgument naming what is wrong with it."""
        if not isinstance(wire, (bytes, bytearray, memoryview)):
            raise invalid("wire", type(wire).__name__, "bytes")
        text, offset, count, element = _unimem._ref_from_wire(bytes(wire))
        return cls(text, offset, None if count == ALL else count, element)


class BufferRegistry:
    """The published buffers of the process. An id has a share in its buffer from `publish` to `release`, and every opened handle one
    of its own. Opening copies nothing: all handles are the same buffer, in other processes the same memory. Thread-safe. In a forked
    child it is empty."""

    __slots__ = ("_dtypes",)

    def __init__(self) -> None:
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def publish(self, buffer: UnifiedBuffer, *, name: str = "", cross_process: bool = False) -> str:
        """Gives the buffer an id. With `cross_process` other processes of this user on this machine open it by that, too: its host
        memory becomes one that all of them map, by one copy, unless it was made so (`shared=True`). Raises InvalidArgument for a name
        that is taken; with `cross_process` UnsupportedOperation for a buffer over a file or over memory that was wrapped, and while it
        is leased or an array of `.host` lives."""
        if not isinstance(buffer, UnifiedBuffer):
            raise invalid("buffer", type(buffer).__name__, "a UnifiedBuffer")
        text = _unimem._publish(buffer, text_of("name", name), flag_of("cross_process", cross_process))
        self._dtypes[text] = buffer.dtype
        return text

    def shared(self, buffer_id: str) -> np.dtype[Any]:
        """The dtype of a published buffer. Raises NotFound; InvalidArgument for elements of a C++ type that NumPy has not: say the dtype
        then."""
        if text_of("buffer_id", buffer_id) in self._dtypes and _unimem._contains_id(buffer_id):
            return self._dtypes[buffer_id]
        dtype = _unimem._dtype_of_id(buffer_id)
        if dtype is None:
            raise invalid("dtype", "left out", "said for elements of a type of C++ that NumPy has not")
        return cast("np.dtype[Any]", dtype)

    def open(self, buffer_id: str, dtype: npt.DTypeLike | None = None) -> UnifiedBuffer:
        """The buffer of this id, as a further handle, of another process's too if it was published with `cross_process`. NotFound for an
        id that was released or never given, InvalidArgument for elements of another type, IoError where another process answers oddly."""
        wanted = self.shared(buffer_id) if dtype is None else dtype_of(dtype)
        return cast(UnifiedBuffer, _unimem._open(UnifiedBuffer, text_of("buffer_id", buffer_id), wanted))

    def refer(self, buffer_id: str, offset: int = 0, count: int | None = None) -> BufferRef:
        """A reference to elements of a published buffer, checked now, which says their type."""
        start, number, element = _unimem._refer(
            text_of("buffer_id", buffer_id), count_of("offset", offset), ALL if count is None else count_of("count", count)
        )  # fmt: skip
        return BufferRef(buffer_id, start, number, element)

    def release(self, buffer_id: str) -> None:
        """Ends what `publish` began: the id is NotFound from now on. Opened handles stay."""
        _unimem._release_id(text_of("buffer_id", buffer_id))
        self._dtypes.pop(buffer_id, None)

    def on_peer_death(self, callback: Callable[[PeerDeath], object]) -> PeerDeathSubscription:
        """Calls `callback` for every process that dies from now on and held a buffer which this one holds, too, until the subscription is
        ended: killed, crashed, or in the middle of a write. Of one that is done with the buffer before, or ends in good order, nothing is
        told. The calls come on a thread of the library's, one after the other; by then what the dead one was writing is lost. They may
        call anything. What one raises is logged."""
        if not callable(callback):
            raise invalid("callback", repr(callback), "callable")
        return PeerDeathSubscription(_unimem._on_peer_death(lambda pid, buffers, lost: callback(PeerDeath(pid, buffers, lost))))

    def find(self, name: str) -> str:
        """The id of what was published under a name. Raises NotFound."""
        return _unimem._find_id(text_of("name", name))

    def list(self) -> list[SharedBuffer]:
        """What is published now, in the order in which it was."""
        return [SharedBuffer(*one) for one in _unimem._list_published()]

    def __reduce__(self) -> tuple[Any, ...]:
        return (registry, ())  # each process has one

    # The registry as the documents use their dictionary.

    def __contains__(self, buffer_id: object) -> bool:
        return isinstance(buffer_id, str) and _unimem._contains_id(buffer_id)

    def __getitem__(self, buffer_id: str) -> UnifiedBuffer:
        return self.open(buffer_id)

    def __len__(self) -> int:
        return _unimem._published()

    def __repr__(self) -> str:
        return f"<unimem.BufferRegistry: {len(self)} published>"

    def _repr_html_(self) -> str:
        names = ("id", "name", "element", "shape", "nbytes", "opened", "holders")
        return grid("BufferRegistry", names, [[getattr(one, name) for name in names] for one in self.list()])


_registry = BufferRegistry()


def registry() -> BufferRegistry:
    """The registry of the process."""
    return _registry
