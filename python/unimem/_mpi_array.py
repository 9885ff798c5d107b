"""Arrays over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._arguments import count_of, dtype_of, size_of
from ._buffer import UnifiedBuffer
from ._elements import BufferSlice
from ._enums import MapMode
from ._errors import invalid, unsupported
from ._manager import MemoryManager
from ._mpi_blocks import BlockDistribution, IndexRange
from ._mpi_calls import Mapped, call, engine, one_group, rank_within
from ._mpi_collectives import agree, type_code
from ._mpi_halo import ExchangeStatistics, HaloExchange
from ._records import BufferStatistics
from ._unimem import Device

if TYPE_CHECKING:
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]


class DistributedArray:
    """One array, a block of it in each rank of a communicator, each of which sees some elements of its neighbours:

        a = mpi.DistributedArray(count, np.float64, halo=1)
        launch(step, a.own.size, read(a.read(*a.reach)), write(b.local()))
        b.fence()

    Each rank has a buffer of its own elements and its halo, on the host and its device like any buffer. `local` is written as one likes. At a
    `fence`, which all ranks call, what has changed in what others may see is told to them; `read` then brings only what is out of date by then, by reads of the
    other rank's memory in which that rank takes no part, and it stays until its owner changes it. What is read is as of the last fence, whatever its owner
    has written since. At first all elements are zero.

    `halo`: how many elements beyond either end of its own a rank may read. `message_bytes`: what a message costs, as the number of bytes that could be moved
    meanwhile: two ranges that are out of date come as one where fewer bytes lie between them. `device`, `manager`, `name`: of this rank's buffer.

    All ranks make the array, call `fence`, the reductions and `close`, before MPI_Finalize: these are collective calls; the others are a rank's own affair.
    Making it raises InvalidArgument, in every rank, where the ranks differ in count, halo or dtype or one of them cannot make its part, which raises its own
    error there. One thread of a rank at a time uses the array. What is not closed stays with MPI until that ends, and so does what an exception leaves
    by ``with``: the other ranks may not have met it."""

    __slots__ = ("_buffer", "_exchange", "_is_open", "_mpi")

    def __init__(
        self,
        count: int,
        dtype: npt.DTypeLike = np.float64,
        comm: MPI.Intracomm | None = None,
        *,
        halo: int = 0,
        message_bytes: int | str = 1024,
        device: Device | str | None = None,
        manager: MemoryManager | None = None,
        name: str = "",
    ) -> None:
        self._mpi = engine("mpi.DistributedArray")
        among = one_group(self._mpi, comm)
        asked = _Asked(count, dtype, halo)

        def prepare() -> tuple[BlockDistribution, int, UnifiedBuffer]:
            blocks = BlockDistribution(count_of("count", count), among.Get_size(), count_of("halo", halo))
            reach = blocks.reach(among.Get_rank())
            buffer = UnifiedBuffer(reach.size, dtype_of(dtype), device=device, manager=manager, name=name)
            if reach.size:
                with Mapped(buffer.slice(), MapMode.DISCARD) as zero:
                    zero.memory[:] = 0
                    zero.keep()
            return blocks, size_of("message_bytes", message_bytes), buffer

        (blocks, most, buffer), same = agree(self._mpi, among, asked.values, prepare)
        for what, (least, greatest) in zip(("count", "halo", "dtype"), same, strict=True):
            if least != greatest:
                raise invalid(what, dict(count=count, halo=halo, dtype=dtype)[what], "the same in every rank")
        self._buffer = buffer
        self._exchange = HaloExchange(self._mpi, buffer, blocks, most, among)
        self._is_open = True

    @property
    def size(self) -> int:
        """The number of elements of the whole array, over all ranks."""
        return self._exchange.blocks.count

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy.dtype of an element."""
        return self._buffer.dtype

    @property
    def own(self) -> IndexRange:
        """The elements of this rank."""
        return self._exchange.own

    @property
    def reach(self) -> IndexRange:
        """The elements that this rank may read."""
        return self._exchange.reach

    def own_of(self, rank: int) -> IndexRange:
        """The elements of another rank."""
        return self._exchange.blocks.own(rank_within("rank", rank, self._exchange.blocks.ranks))

    def local(self) -> BufferSlice:
        """This rank's own elements, to be read and written here and on devices. Others see what is written after the next fence."""
        self._require_open("local")
        return self._part(self.own)

    def read(self, begin: int, end: int) -> BufferSlice:
        """Elements ``[begin, end)`` of the reach, to be read. Those of other ranks are as of the last fence: what of them is out of date is brought
        first, and nothing if nothing is: then this calls nothing of MPI. What is written to them here reaches nobody, and is read here until their owner changes them.
        InvalidArgument beyond the reach; DeviceError, after which what was to be brought is still out of date."""
        part = IndexRange(count_of("begin", begin), count_of("end", end))
        if part.size < 0 or not self.reach.contains(part):
            raise invalid("range", f"[{begin}, {end})", f"in what this rank may read, [{self.reach.begin}, {self.reach.end})")
        self._require_open("read")
        self._exchange.bring(part)
        return self._part(part)

    def fence(self) -> None:
        """Tells the other ranks what of this one's elements has changed since the last fence, and hears the same of them. Found out by comparing what others may
        see with what they could see before, element by element: that is brought to the host for it. Two messages to each neighbour. When it
        returns, `read` gives what the others had at their fence."""
        self._require_open("fence")
        self._exchange.fence()

    def sum(self) -> int | float:
        """The sum of all elements of all ranks, in double precision or 64 bits, which wrap around. In which order floating-point numbers are
        added depends on the number of ranks, and so does their rounding. This rank's elements come to the host. InvalidArgument, in every rank, for
        elements that are no numbers."""
        wide = {"f": "f8", "i": "i8", "u": "u8"}[self._numbers()]
        total: int | float = self._of_all(lambda mine: [np.sum(mine, dtype=wide)], wide, self._mpi.SUM)[0]
        return total

    def min(self) -> int | float:
        """The smallest element, and NaN if one is. InvalidArgument for an array of none, and as `sum`."""
        return self._extreme(np.min, "max", math.inf, self._mpi.MIN)

    def max(self) -> int | float:
        """The largest element, likewise."""
        return self._extreme(np.max, "min", -math.inf, self._mpi.MAX)

    def close(self) -> None:
        """All ranks: gives back what MPI has for the array, which has nothing more of it after MPI_Finalize. Nothing but its figures can be had afterwards. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._exchange.exposed.free()

    def __enter__(self) -> DistributedArray:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self.close()

    @property
    def statistics(self) -> ExchangeStatistics:
        """What it has exchanged with other ranks."""
        return self._exchange.statistics

    @property
    def buffer_statistics(self) -> BufferStatistics:
        """What moved between this rank's host and its devices."""
        return self._buffer.statistics

    def __repr__(self) -> str:
        return f"DistributedArray(size={self.size}, dtype={self.dtype}, own=[{self.own.begin}, {self.own.end}))"

    def _part(self, part: IndexRange) -> BufferSlice:
        return self._buffer.slice(part.begin - self.reach.begin, part.size)

    def _require_open(self, operation: str) -> None:
        if not self._is_open:
            raise unsupported(operation, "a distributed array", "it has been closed")

    def _numbers(self) -> str:
        kind, size = self.dtype.kind, self.dtype.itemsize
        if kind not in "iuf" or size > 8:
            raise invalid("elements", self.dtype, "integers or floating-point numbers of up to 64 bits")
        return kind

    def _of_all(self, of_mine: Callable[[np.ndarray], list[Any]], wide: str, operation: Any) -> list[Any]:
        self._require_open("a reduction")
        engine("mpi.DistributedArray: a reduction")
        kind = self._mpi.DOUBLE if wide == "f8" else self._mpi.INT64_T if wide == "i8" else self._mpi.UINT64_T
        result = np.array(of_mine(self.local().host.view(np.ndarray)), wide)
        call("MPI_Allreduce", self._exchange.exposed.comm.Allreduce, self._mpi.IN_PLACE, [result, kind], operation)
        values: list[Any] = result.tolist()
        return values

    def _extreme(self, find: Callable[[np.ndarray], Any], of_none: str, beyond: float, operation: Any) -> int | float:
        """Of a rank without elements it is the integer that the others' are no worse than, or infinity."""
        kind = self._numbers()
        if not self.size:
            raise invalid("array", "of no elements", "of one at least")
        value: int | float
        if kind != "f":
            outermost = getattr(np.iinfo(self.dtype), of_none)
            (value,) = self._of_all(lambda mine: [find(mine) if mine.size else outermost], f"{kind}8", operation)
            return value

        def of_mine(mine: np.ndarray) -> list[float]:
            found = find(mine) if mine.size else beyond
            return [beyond, -beyond] if math.isnan(found) else [found, 0.0]

        # MPI compares with NaN in an order of its own, so that a rank has one is told by a number beside.
        value, is_nan = self._of_all(of_mine, "f8", operation)
        return math.nan if is_nan else value


class _Asked:
    """Numbers for what ranks must agree on; of what is none of it any, since the rank says so by itself."""

    def __init__(self, count: object, dtype: npt.DTypeLike, halo: object) -> None:
        def number(value: object) -> int:
            return int(value) if isinstance(value, (int, np.integer)) and 0 <= int(value) < 2**63 else -1

        try:
            code = type_code(np.dtype(dtype))
        except (TypeError, ValueError):
            code = -1
        self.values = [number(count), number(halo), code]
