"""How buffers go from one of Dask's processes to another: as frames over their own memory, or, between workers of one host that have said so
to each other, as the id of memory that both map.

Dask has a receiver find the function for what arrives in a table that the receiver's own program must have filled. Whether it has is
known of receivers that say so when they connect: workers with the plugin. To all others a buffer goes as a pickle, whose frames are the same
memory, and which any process with the library reads."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from dask.base import normalize_token  # type: ignore[import-not-found,unused-ignore]
from distributed.protocol.serialize import (  # type: ignore[import-not-found,unused-ignore]
    dask_deserialize,
    dask_serialize,
    pickle_loads,
)

from . import _unimem
from ._buffer import UnifiedBuffer, share_from
from ._devices import default_device
from ._elements import Elements
from ._enums import BufferState, Location, Tracking
from ._errors import Error
from ._pickles import asked_of, attributes_of, give_attributes
from ._records import Record
from ._sharing import registry
from ._signatures import version

_logger = logging.getLogger("unimem.dask")
_TRACKING, _LOCATIONS = list(Tracking), list(Location)

# Below, making memory for two processes and mapping it takes longer than sending the bytes.
SMALLEST_HANDED_OVER = 256 << 10

# What a process says of itself when it connects, in Dask's handshake.
HANDSHAKE = "unimem"


@dataclass(frozen=True, slots=True)
class Transfers(Record):
    """What this process has sent to other workers of the host as memory and not as bytes, and what it has received so. `declined`: buffers
    as large that went as bytes, since they were not made in memory that others can have, or with options that would not arrive."""

    handed_over: int = 0
    handed_over_bytes: int = 0
    opened: int = 0
    opened_bytes: int = 0
    declined: int = 0


def token_of(buffer: Elements) -> Any:
    """For ``dask.base.tokenize``: equal for equal contents, dtype and shape."""
    data = None if buffer.state is BufferState.UNINITIALIZED else normalize_token(buffer.host.view(np.ndarray))
    return ("unimem", buffer.shape, normalize_token(buffer.dtype), data)


def identity_of_host() -> str:
    """Equal in processes that may have each other's memory: of one boot of one machine, one user and one version of the library, which see the
    same processes (the namespace of their numbers) and find each other (that of the network)."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    spaces = (os.readlink(f"/proc/self/ns/{one}") for one in ("pid", "net"))
    return " ".join((version(), boot, str(os.getuid()), *spaces))


class Unreachable(EOFError):
    """Dask takes it for a connection that has broken in the middle of a message: it closes that, and asks again, by a new one."""


class Handover:
    """The buffers of this process that other workers of the host get as memory. Each has an id from when it is first asked for until its
    object is collected: Dask keeps it until the receiver has said that it has arrived. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers come at any time
        self._ids: dict[int, str] = {}
        self.counts = Transfers()
        self.identity: str | None = None  # while a worker of this process takes part
        self._workers: dict[int, Callable[[], None]] = {}

    def begin(self, worker: int, withdraw: Callable[[], None]) -> str:
        """A worker takes part from now on, and says the result to others. `withdraw`: it says so no more."""
        with self._lock:
            self.identity = identity = identity_of_host()
            self._workers[worker] = withdraw
            share_from(SMALLEST_HANDED_OVER)
            return identity

    def end(self, worker: int) -> None:
        """Idempotent."""
        with self._lock:
            withdraw = self._workers.pop(worker, None)
            if not self._workers:
                self.identity = None
                share_from(None)
        if withdraw is not None:
            withdraw()

    def id_of(self, buffer: UnifiedBuffer, recipient: str) -> str | None:
        """None: it goes as bytes."""
        if self.identity is None or recipient != self.identity or buffer.nbytes < SMALLEST_HANDED_OVER:
            return None
        with self._lock:
            # One that was made otherwise would be copied to such memory first, which takes longer than Dask's way.
            if not buffer._is_shared or not _survives(buffer):
                self._count(declined=1)
                return None
            text = self._ids.get(id(buffer))
            if text is None:
                try:
                    buffer.sync_to_host()  # what a device has newer
                    text = registry().publish(buffer, cross_process=True)
                except Error as error:
                    self._count(declined=1)
                    _logger.warning("a buffer goes to another worker of this host as bytes: %s", error)
                    return None
                self._ids[id(buffer)] = text
                weakref.finalize(buffer, self._forget, id(buffer), text).atexit = False
            self._count(handed_over=1, handed_over_bytes=buffer.nbytes)
            return text

    def _forget(self, key: int, text: str) -> None:
        with self._lock:
            if self._ids.get(key) == text:
                del self._ids[key]
        try:
            registry().release(text)
        except Error:
            pass  # somebody has released it by its id

    def open(self, kind: type[UnifiedBuffer], text: str, dtype: np.dtype[Any]) -> UnifiedBuffer:
        """The same memory, as a buffer of this process."""
        try:
            made = cast(UnifiedBuffer, _unimem._open(kind, text, dtype))
        except Error as error:
            for worker in list(self._workers):
                self.end(worker)
            message = f"memory that another worker of this host has handed over cannot be opened ({error}); from now on this worker asks for bytes"
            _logger.warning(message)
            raise Unreachable(message) from error
        with self._lock:
            self._count(opened=1, opened_bytes=made.nbytes)
        return made

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + by for name, by in more.items()})


handover = Handover()


def transfers() -> Transfers:
    """What came of it so far in this process."""
    return handover.counts


def _survives(buffer: UnifiedBuffer) -> bool:
    """Whether what is opened by an id is what was sent: it has the usual options, but for its priority."""
    device, tracking, pinned, strict, _, location, *_ = asked_of(buffer)
    usual = _TRACKING[tracking] is Tracking.ACCESS and not pinned and not strict and _LOCATIONS[location] in (Location.DEVICE, Location.HOST)
    return usual and device in (None, default_device().id) and buffer.state is not BufferState.UNINITIALIZED


def _to_frames(value: Elements, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    recipient = None if context is None else (context.get("recipient") or {}).get(HANDSHAKE)
    if context is not None and recipient is None:
        raise NotImplementedError  # the next family is pickle
    if isinstance(value, UnifiedBuffer) and type(value).__reduce__ is Elements.__reduce__ and recipient is not None:
        text = handover.id_of(value, recipient)
        if text is not None:
            head, _ = _pickled((type(value), value.dtype, value.priority, attributes_of(value)))
            return {"id": text}, [head]
    head, frames = _pickled(value)
    return {"writeable": tuple(not one.readonly for one in frames)}, [head, *frames]


def _pickled(value: object) -> tuple[bytes, list[memoryview]]:
    """By value where the receiver has no such module, as Dask pickles."""
    import cloudpickle  # type: ignore[import-not-found,unused-ignore]

    frames: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(value, 5, buffer_callback=frames.append)
    except Exception:
        head = b"__main__"
    if b"__main__" in head:
        frames.clear()
        head = cloudpickle.dumps(value, 5, buffer_callback=frames.append)
    return head, [memoryview(one) for one in frames]


def _from_frames(header: dict[str, Any], frames: list[Any]) -> Any:
    if "id" not in header:
        return pickle_loads(header, frames)
    kind, dtype, priority, attributes = pickle.loads(frames[0])
    made = handover.open(kind, header["id"], dtype)
    made.priority = priority
    return give_attributes(made, attributes)


def register_messages() -> None:
    dask_serialize.register(Elements, _to_frames)
    dask_deserialize.register(Elements, _from_frames)
