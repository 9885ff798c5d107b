"""Messages between buffers of MPI's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _unimem
from ._enums import MapMode
from ._errors import size_mismatch
from ._kernels import Operand
from ._mpi_calls import Mapped, Part, call, communicator, engine, rank_of, require_threads, tag_of
from ._mpi_progress import RECEIVE, SEND, Channel, Found, Mismatch, Pending, PendingReceive, PendingSend, progress
from ._records import Record
from ._unimem import Event

if TYPE_CHECKING:
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]


@dataclass(frozen=True, slots=True)
class Received(Record):
    """What a message was: the rank that sent it, its tag and its size."""

    source: int
    tag: int
    nbytes: int


def _sent(operation: str, x: Operand, to: int, tag: int, comm: Any) -> tuple[Any, Part, Channel]:
    mpi = engine(operation)
    comm = communicator(mpi, comm)
    channel = Channel(SEND, comm, rank_of("to", to, mpi, comm), tag_of(tag, mpi))
    return mpi, Part(x, mpi).require_sent(), channel


def _received(operation: str, y: Operand, source: int, tag: int, comm: Any) -> tuple[Any, Part, Channel]:
    mpi = engine(operation)
    comm = communicator(mpi, comm)
    channel = Channel(RECEIVE, comm, rank_of("source", source, mpi, comm, any_rank=True), tag_of(tag, mpi, any_tag=True))
    return mpi, Part(y, mpi).require_received(operation), channel


def send(x: Operand, to: int, tag: int = 0, comm: MPI.Comm | None = None) -> None:
    """Sends what is read to another rank, and returns when the buffer may be written again, as MPI_Send does: ``mpi.send(unimem.read(x), 1)``.

    Waits for work that writes those bytes. What is current on the host is sent from there; what a device has comes to the host first, counted by the
    buffer's statistics. Numbers are sent as MPI's own types, all other elements as bytes, any number of them as one message: the peer may call
    `receive`, mpi4py, or MPI itself. InvalidArgument for a rank or tag that there is not, and for an operand that is only written;
    UnsupportedOperation without mpi4py, before MPI_Init and after MPI_Finalize; DeviceError with MPI's text. A send to MPI.PROC_NULL does nothing."""
    mpi, part, at = _sent("mpi.send", x, to, tag, comm)
    if at.peer == mpi.PROC_NULL:
        return
    if progress.would_pass(at, mpi):
        isend(x, to, tag, comm).wait()
        return
    with Mapped(part.window, MapMode.READ) as bytes_:
        call("MPI_Send", at.comm.Send, part.message(bytes_.memory), at.peer, at.tag)


def receive(y: Operand, source: int, tag: int = 0, comm: MPI.Comm | None = None) -> Received:
    """Receives into what is written, from one rank or MPI.ANY_SOURCE, by one tag or MPI.ANY_TAG, and returns when the bytes are there. They
    count as written on the host.

    SizeMismatch for a message that is larger or smaller than what is written, whose size is looked at before anything is received: the buffer is
    unchanged, and the message is received into memory of its own and dropped. MPI tells a message's size and not its type. Else as `send`; where MPI fails
    in the middle of receiving, what was to be written is undefined. A receive from MPI.PROC_NULL changes nothing."""
    mpi, part, at = _received("mpi.receive", y, source, tag, comm)
    if at.peer == mpi.PROC_NULL:
        return Received(mpi.PROC_NULL, mpi.ANY_TAG, 0)
    progress.await_turn(at, mpi)
    status = mpi.Status()
    found = Found(call("MPI_Mprobe", at.comm.Mprobe, at.peer, at.tag, status), status, mpi)
    try:
        found.require_size_of(part)
        with Mapped(part.window, MapMode.DISCARD) as bytes_:
            call("MPI_Mrecv", found.take().Recv, part.message(bytes_.memory))
            bytes_.keep()
    except Mismatch as mismatch:
        said = mismatch.said
    else:
        return Received(found.source, found.tag, found.nbytes)
    finally:
        found.drop()
    raise size_mismatch(*said)


def isend(x: Operand, to: int, tag: int = 0, comm: MPI.Comm | None = None) -> Event:
    """Sends as `send` does, behind the caller's back. It is work like a launch: it waits for work that writes those bytes, and what writes them
    afterwards waits for it; its failure is the event's. A thread of this process carries it on. Messages to one rank by one tag, blocking ones of
    this module's among them, go in the order in which they were begun. `comm` must stay until the end: a message that
    still waits for a kernel is UnsupportedOperation of the event where it is freed before.

    UnsupportedOperation unless MPI was given MPI_THREAD_MULTIPLE, which is what mpi4py asks for by itself. Else as `send`."""
    mpi, part, at = _sent("mpi.isend", x, to, tag, comm)
    return _begun(PendingSend, "mpi.isend", mpi, part, at)


def ireceive(y: Operand, source: int, tag: int = 0, comm: MPI.Comm | None = None) -> Event:
    """Receives as `receive` does, behind the caller's back. It is work like a launch that writes: launches and accesses of these bytes wait for it.
    Messages are found in the order in which the receives that they fit were begun. `comm` must stay until the end: MPI is asked for the message all the
    time, and may end the process where another thread frees it.

    A message of another size is a SizeMismatch of the event: it is dropped, and the buffer holds what it held. As after any failed work, the next
    access to these bytes raises it once more."""
    mpi, part, at = _received("mpi.ireceive", y, source, tag, comm)
    return _begun(PendingReceive, "mpi.ireceive", mpi, part, at)


def _begun(kind: type[Pending], operation: str, mpi: Any, part: Part, at: Channel) -> Event:
    require_threads(operation, mpi)
    if at.peer == mpi.PROC_NULL:
        return _unimem._ended_event()
    work = _unimem._begin_outside_work(part.window, kind is PendingReceive)
    event = work.event
    progress.add(kind(work, at, part, mpi))
    return event
