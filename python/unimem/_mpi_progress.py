"""Messages that are sent and received behind the caller's back. MPI has requests, and no call that tells of their end: one thread of this process,
started with the first of them, asks for all that are under way."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

from . import _unimem
from ._errors import Error
from ._mpi_calls import Part, call, failure_of

SEND, RECEIVE = range(2)


class Channel:
    """Which messages an operation is about: those of two operations that meet go in the order in which these were begun."""

    __slots__ = ("comm", "direction", "peer", "tag")

    def __init__(self, direction: int, comm: Any, peer: int, tag: int) -> None:
        self.direction, self.comm, self.peer, self.tag = direction, comm, peer, tag

    def meets(self, other: Channel, mpi: Any) -> bool:
        if self.direction != other.direction or self.comm != other.comm:
            return False
        return all(mine == its or any_of_them in (mine, its) for mine, its, any_of_them in
                   ((self.peer, other.peer, mpi.ANY_SOURCE), (self.tag, other.tag, mpi.ANY_TAG)))  # fmt: skip


class Mismatch(Exception):
    """A message that is not what it was to be received into: what it is, and the two sizes with their unit."""

    def __init__(self, what: str, expected: int, actual: int, unit: str) -> None:
        super().__init__(what, expected, actual, unit)
        self.said = (what, expected, actual, unit)


class CommunicatorFreed(Exception):
    """A message that had not begun has none any more."""


class Found:
    """A message that no other call can receive any more. To be received, or dropped, or its sender may wait for ever."""

    __slots__ = ("_message", "nbytes", "source", "tag")

    def __init__(self, message: Any, status: Any, mpi: Any) -> None:
        self._message = message
        size = status.Get_elements(mpi.BYTE)
        self.nbytes: int = 0 if size == mpi.UNDEFINED else size
        self.source: int = status.Get_source()
        self.tag: int = status.Get_tag()

    def require_size_of(self, part: Part) -> None:
        """Mismatch, with the message dropped, unless it is as many bytes."""
        if self.nbytes == part.nbytes:
            return
        self.drop()
        what, size = f"a message from rank {self.source} with tag {self.tag}", part.unit
        if self.nbytes % size:
            raise Mismatch(what, part.nbytes, self.nbytes, "bytes")
        raise Mismatch(what, part.count, self.nbytes // size, "elements")

    def take(self) -> Any:
        message, self._message = self._message, None
        return message

    def drop(self) -> None:
        """Into memory of its size: with less, Open MPI 4 reads the whole of a large message to the address all the same. Idempotent; where MPI
        fails the caller raises what is wrong already."""
        message = self.take()
        if message is None:
            return
        try:
            call("MPI_Mrecv", message.Recv, bytearray(self.nbytes))
        except (Error, MemoryError):
            pass


class Pending:
    """One message, carried on in steps none of which block. On one thread, but for `has_begun`."""

    def __init__(self, work: _unimem.OutsideWork, channel: Channel, part: Part, mpi: Any) -> None:
        self.work, self.channel, self.part, self.mpi = work, channel, part, mpi
        self.has_begun = False
        self.has_memory = False  # MPI has that of the buffer
        self.request: Any = None

    def begin(self) -> bool:
        """MPI gets to know of it, or finds it: whether that has come to be. From then on another of its channel may."""
        raise NotImplementedError

    def require_communicator(self) -> None:
        """What is freed while MPI has a message stays for that; a call on what has been freed ends the process in Open MPI. One that is freed at this
        moment, by another thread, cannot be told from here: it must stay, as the documents say."""
        if self.channel.comm == self.mpi.COMM_NULL:
            raise CommunicatorFreed

    def is_over(self) -> bool:
        """After `begin`."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """The buffer takes back what was to be written, unless MPI had its memory. Work that has failed already has its own error."""
        self.request = None
        if isinstance(error, Mismatch):
            self.work.fail_in_size(*error.said)
        elif isinstance(error, CommunicatorFreed):
            self.work.fail_unsupported("a message", "its communicator", "it was freed before the message had begun")
        elif isinstance(error, self.mpi.Exception):
            said = failure_of("a message", error)
            self.work.fail_in_call(said.call, said.code, said.code_name, self.has_memory)
        else:
            self.work.fail_in_call("a message", 0, f"{type(error).__name__}: {error}", self.has_memory)

    def leave(self) -> None:
        """MPI or the process ends."""
        self.work.fail_unsupported("a message", "MPI", "it had not ended when MPI or the process did")


class PendingSend(Pending):
    def begin(self) -> bool:
        if not self.work.may_begin():
            return False
        self.require_communicator()
        at, self.has_memory = self.channel, True
        self.request = at.comm.Isend(self.part.message(self.work.array), at.peer, at.tag)
        return True

    def is_over(self) -> bool:
        return bool(self.request.Test())


class PendingReceive(Pending):
    found: Found | None = None

    def begin(self) -> bool:
        """Found, and kept from all other receives; its memory may have to be waited for."""
        self.require_communicator()
        at, status = self.channel, self.mpi.Status()
        message = at.comm.Improbe(at.peer, at.tag, status)
        if message is None:
            return False
        self.found = Found(message, status, self.mpi)
        self.found.require_size_of(self.part)
        return True

    def is_over(self) -> bool:
        if self.request is None:
            assert self.found is not None
            if not self.work.may_begin():
                return False
            self.has_memory = True
            self.request = self.found.take().Irecv(self.part.message(self.work.array))
        return bool(self.request.Test())

    def fail(self, error: BaseException) -> None:
        if self.found is not None:
            self.found.drop()
        super().fail(error)

    def leave(self) -> None:
        if self.found is not None:
            self.found.drop()
        super().leave()


class Waiting:
    """Channels of messages that have not begun, of one look: those that name a rank and a tag are found by these."""

    def __init__(self) -> None:
        self._named = set[tuple[int, int, int, int]]()
        self._all: list[Channel] = []
        self._any: list[Channel] = []

    @staticmethod
    def _name(channel: Channel) -> tuple[int, int, int, int]:
        return channel.direction, channel.comm.handle, channel.peer, channel.tag

    @staticmethod
    def _is_named(channel: Channel) -> bool:
        return channel.direction == SEND or (channel.peer >= 0 and channel.tag >= 0)  # what stands for any is negative

    def add(self, channel: Channel) -> None:
        self._all.append(channel)
        self._named.add(self._name(channel)) if self._is_named(channel) else self._any.append(channel)

    def have_one_before(self, message: Pending) -> bool:
        channel = message.channel
        if self._is_named(channel):
            return self._name(channel) in self._named or any(one.meets(channel, message.mpi) for one in self._any)
        return any(one.meets(channel, message.mpi) for one in self._all)


class Progress:
    """The messages that are under way, in the order in which they were begun, and the thread that carries them on while there are any: without rest
    for a moment, then every so many microseconds. It alone calls MPI for them: signals are handled on the main thread, and a message that was found there
    might be lost to what a handler raises. At MPI_Finalize what MPI has of them ends as it ends then, and what has not begun fails.

    Thread-safe."""

    _PATIENCE = 200  # looks at which nothing has moved

    def __init__(self) -> None:
        self._some = threading.Condition(threading.RLock())  # finalizers come at any time
        self._messages: list[Pending] = []
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._process = os.getpid()

    def add(self, message: Pending) -> None:
        with self._some:
            if self._is_stopping:  # by another that is told of the interpreter's end
                message.leave()
                return
            if self._thread is None:
                self._end_with(message.mpi)
                # A daemon, since the interpreter waits for others before it says that it ends.
                self._thread = threading.Thread(target=self._work, name="unimem.mpi", daemon=True)
                self._thread.start()
            self._messages.append(message)
            self._some.notify()

    def would_pass(self, channel: Channel, mpi: Any) -> bool:
        """Whether a message of this channel that was begun now would pass one that was begun before."""
        if not self._messages:
            return False
        with self._some:
            return any(not one.has_begun and one.channel.meets(channel, mpi) for one in self._messages)

    def await_turn(self, channel: Channel, mpi: Any) -> None:
        while self.would_pass(channel, mpi):
            time.sleep(20e-6)

    def _work(self) -> None:
        idle = 0
        while True:
            with self._some:
                while not self._messages and not self._is_stopping:
                    self._some.wait()
                if self._is_stopping:
                    return
                messages = list(self._messages)
            idle = 0 if self._look_at(messages) else idle + 1
            del messages
            time.sleep(0 if idle < self._PATIENCE else 50e-6)

    def _look_at(self, messages: list[Pending]) -> bool:
        """One look at each. Whether anything has moved."""
        moved, over, waiting = False, set[int](), Waiting()
        for message in messages:
            try:
                if not message.has_begun:
                    message.has_begun = not waiting.have_one_before(message) and message.begin()
                    moved = moved or message.has_begun
                if not message.has_begun:
                    waiting.add(message.channel)
                    continue
                if not message.is_over():
                    continue
                message.request = None
                message.work.succeed()
            except BaseException as error:
                message.fail(error)
                message.has_begun = True
            over.add(id(message))
        if over:
            with self._some:
                self._messages = [one for one in self._messages if id(one) not in over]
        return moved or bool(over)

    def _end_with(self, mpi: Any) -> None:
        """MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else."""
        keyval = mpi.Comm.Create_keyval(delete_fn=lambda *_: self._stop())
        mpi.COMM_SELF.Set_attr(keyval, True)
        atexit.register(self._interpreter_ends, mpi, keyval)

    def _interpreter_ends(self, mpi: Any, keyval: int) -> None:
        # In a forked child there is nothing of it to end.
        if os.getpid() == self._process and not mpi.Is_finalized():
            mpi.COMM_SELF.Delete_attr(keyval)

    def _stop(self) -> None:
        with self._some:
            self._is_stopping = True
            self._some.notify_all()
        if self._thread is not None:
            self._thread.join()
        messages, self._messages = self._messages, []
        for message in messages:
            if message.request is None:
                message.leave()
                continue
            try:
                while not message.is_over():
                    time.sleep(0)
                message.work.succeed()
            except BaseException as error:
                message.fail(error)


progress = Progress()
