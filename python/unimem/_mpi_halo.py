"""What a rank has of a distributed array: which of its halo is current, and what the other ranks may read of its own elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._buffer import UnifiedBuffer
from ._enums import MapMode
from ._mpi_blocks import BlockDistribution, IndexRange, Ranges, changed, decode, encode, joined
from ._mpi_calls import Mapped, call, engine
from ._records import Record

_MEETING, _CHANGES = range(2)  # tags


@dataclass(frozen=True, slots=True)
class ExchangeStatistics(Record):
    """What an array has exchanged with other ranks since it was made, as this rank has asked for it: reads of other ranks' memory, one for each range that
    was brought, and messages that say what has changed, and those that say nothing has."""

    reads: int = 0
    read_bytes: int = 0
    notices: int = 0
    notice_bytes: int = 0


class ExposedMemory:
    """A communicator of its own, on which errors come back, and memory that its ranks may read at any time, of MPI's own, so that ranks of one machine
    share it. Zero at first. Made and freed by all ranks together."""

    def __init__(self, mpi: Any, among: Any, nbytes: int) -> None:
        self.comm = call("MPI_Comm_dup", among.Dup)
        self.comm.Set_errhandler(mpi.ERRORS_RETURN)
        # Open MPI 4 mixes up the memory of communicators that one split made, unless it is asked for as shared (open-mpi/ompi issue 9492).
        near = call("MPI_Comm_split_type", self.comm.Split_type, mpi.COMM_TYPE_SHARED)
        make = mpi.Win.Allocate_shared if near.Get_size() == self.comm.Get_size() else mpi.Win.Allocate
        near.Free()
        try:
            self._window = call("MPI_Win_allocate", make, nbytes, 1, mpi.INFO_NULL, self.comm)
        except Exception:
            self.comm.Free()
            raise
        self._window.Set_errhandler(mpi.ERRORS_RETURN)
        self._mpi, self._byte = mpi, mpi.BYTE
        self.memory = np.frombuffer(self._window.tomemory(), np.uint8) if nbytes else np.empty(0, np.uint8)
        self.memory[:] = 0
        call("MPI_Win_lock_all", self._window.Lock_all, mpi.MODE_NOCHECK)
        self.store()
        call("MPI_Barrier", self.comm.Barrier)  # before that it may not be zero

    def store(self) -> None:
        """What this rank has written to its memory is seen by reads that begin after another rank has heard of it."""
        call("MPI_Win_sync", self._window.Sync)

    def begin_read(self, rank: int, offset: int, to: np.ndarray) -> None:
        call("MPI_Get", self._window.Get, [to, self._byte], rank, (offset, to.nbytes, self._byte))

    def finish_reads(self, rank: int) -> None:
        call("MPI_Win_flush", self._window.Flush, rank)

    def free(self) -> None:
        self.memory = np.empty(0, np.uint8)  # MPI's is gone
        if self._mpi.Is_finalized():
            return
        call("MPI_Win_unlock_all", self._window.Unlock_all)
        call("MPI_Win_free", self._window.Free)
        self.comm.Free()


class HaloExchange:
    """A buffer of a rank's own elements and of its halo, and a copy of its edges as of the last fence, so that a rank may go on writing while others read.
    Used by one thread at a time."""

    def __init__(self, mpi: Any, buffer: UnifiedBuffer, blocks: BlockDistribution, message_bytes: int, comm: Any) -> None:
        self._mpi, self._buffer, self.blocks = mpi, buffer, blocks
        self._rank: int = comm.Get_rank()
        self.own, self.reach = blocks.own(self._rank), blocks.reach(self._rank)
        self._edges = [one for one in blocks.edges(self._rank) if one.size]
        self._itemsize = buffer.itemsize
        self._most_between = -(-message_bytes // buffer.itemsize)
        self._current = Ranges([self.reach])
        others = (one for one in range(blocks.ranks) if one != self._rank)
        self._neighbours = [one for one in others if blocks.reach(one).common(self.own).size or self.reach.common(blocks.own(one)).size]
        self._counts = [0, 0, 0, 0]
        self.exposed = ExposedMemory(mpi, comm, sum(one.size for one in self._edges) * self._itemsize)

    @property
    def statistics(self) -> ExchangeStatistics:
        return ExchangeStatistics(*self._counts)

    def _map(self, part: IndexRange, mode: MapMode) -> Mapped:
        return Mapped(self._buffer.slice(part.begin - self.reach.begin, part.size), mode)

    def bring(self, part: IndexRange) -> None:
        """What of it is out of date, from its owners as of the last fence."""
        if self._current.contains(part):
            return
        engine("mpi.DistributedArray.read")
        missing = self._current.missing(part)
        reads: list[tuple[int, IndexRange, Mapped]] = []
        owners = []
        try:
            for owner in self._neighbours:
                its = self.blocks.own(owner)
                wanted = joined((one for one in (its.common(gap) for gap in missing) if one.size), self._most_between)
                for one in wanted:
                    # Nothing else writes to a halo, so mapping it moves nothing.
                    reads.append((owner, one, self._map(one, MapMode.DISCARD)))
                if wanted:
                    owners.append(owner)
            try:
                for owner, one, mapped in reads:
                    offset = self.blocks.offset_in_edges(owner, one.begin) * self._itemsize
                    self.exposed.begin_read(owner, offset, mapped.memory)
                    self._counts[0] += 1
                    self._counts[1] += one.size * self._itemsize
            finally:
                for owner in owners:
                    self.exposed.finish_reads(owner)
                for _, _, mapped in reads:
                    mapped.keep()  # some of it may have been brought where others failed
        finally:
            for _, _, mapped in reads:
                mapped.end()
        self._current.add(one for _, one, _ in reads)

    def fence(self) -> None:
        """Tells the neighbours what has changed in this rank's edges since the last fence, and gets to know the same."""
        engine("mpi.DistributedArray.fence")
        changes = Ranges(self._store_changes_when_all_are_here())
        comm, byte = self.exposed.comm, self._mpi.BYTE
        requests = []
        for other in self._neighbours:
            notice = encode(changes.within(self.blocks.reach(other).common(self.own)), self.own.begin)
            requests.append(call("MPI_Isend", comm.Isend, [notice, byte], other, _CHANGES))
            self._counts[2] += 1
            self._counts[3] += len(notice)
        for other in self._neighbours:
            status = self._mpi.Status()
            found = call("MPI_Mprobe", comm.Mprobe, other, _CHANGES, status)
            notice_of = bytearray(status.Get_count(byte))
            call("MPI_Mrecv", found.Recv, [notice_of, byte])
            told = decode(bytes(notice_of), self.blocks.own(other))
            self._current.remove(one for one in (each.common(self.reach) for each in told) if one.size)
        call("MPI_Waitall", self._mpi.Request.Waitall, requests)

    def _store_changes_when_all_are_here(self) -> list[IndexRange]:
        """Compares this rank's edges with what others may read of them, and stores what has changed once no rank reads any more: each says that it has come to
        its fence."""
        found: list[IndexRange] = []
        mapped: list[Mapped] = []
        try:
            for edge in self._edges:
                mapped.append(self._map(edge, MapMode.READ))
                found += [IndexRange(edge.begin + one.begin, edge.begin + one.end)
                          for one in changed(mapped[-1].memory, self._stored(edge), self._itemsize)]  # fmt: skip
            self._meet_neighbours()
            for edge, memory in zip(self._edges, mapped, strict=True):
                stored = self._stored(edge)
                for one in Ranges(found).within(edge):
                    part = slice((one.begin - edge.begin) * self._itemsize, (one.end - edge.begin) * self._itemsize)
                    stored[part] = memory.memory[part]
        finally:
            for memory in mapped:
                memory.end()
        self.exposed.store()
        return found

    def _stored(self, edge: IndexRange) -> np.ndarray:
        begin = self.blocks.offset_in_edges(self._rank, edge.begin) * self._itemsize
        return self.exposed.memory[begin : begin + edge.size * self._itemsize]

    def _meet_neighbours(self) -> None:
        comm, nothing = self.exposed.comm, [b"", self._mpi.BYTE]
        requests = []
        for other in self._neighbours:
            requests.append(call("MPI_Irecv", comm.Irecv, [bytearray(), self._mpi.BYTE], other, _MEETING))
            requests.append(call("MPI_Isend", comm.Isend, nothing, other, _MEETING))
            self._counts[2] += 1
        call("MPI_Waitall", self._mpi.Request.Waitall, requests)
