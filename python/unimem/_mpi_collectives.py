"""Calls that all ranks make together, on buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import numpy as np

from ._enums import MapMode, _Named, number_in
from ._errors import InvalidArgument, invalid, size_mismatch
from ._kernels import Operand
from ._mpi_calls import Mapped, Part, call, engine, one_group, rank_within

if TYPE_CHECKING:
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]


class Reduction(_Named):
    """What `all_reduce` makes of the elements of all ranks."""

    SUM = "sum"
    """Of floating-point numbers it depends on the order in which MPI adds them."""
    PRODUCT = "product"
    """Likewise."""
    MINIMUM = "minimum"
    """The smallest."""
    MAXIMUM = "maximum"
    """The largest."""


_Prepared = TypeVar("_Prepared")


def type_code(dtype: np.dtype[Any]) -> int:
    """A number for a dtype that is the same in every rank."""
    return crc32(repr(dtype).encode())


def agree(mpi: Any, comm: Any, values: list[int], prepare: Callable[[], _Prepared]) -> tuple[_Prepared, list[tuple[int, int]]]:
    """What every rank passes to a collective call has to be the same in all of them, or MPI does what it likes: so they agree first, by one reduction of
    some numbers. What `prepare` gives, and for each of the values the least and the greatest that a rank has. What `prepare` raises is raised here once the others
    have been told, and is InvalidArgument there."""
    failure: Exception | None = None
    prepared: _Prepared | None = None
    try:
        prepared = prepare()
    except Exception as error:
        failure = error
    mine = np.array([int(failure is not None), *(sign * one for one in values for sign in (1, -1))], np.int64)
    most = np.empty_like(mine)
    call("MPI_Allreduce", comm.Allreduce, [mine, mpi.INT64_T], [most, mpi.INT64_T], mpi.MAX)
    if failure is not None:
        raise failure
    if most[0]:
        raise invalid("call", "what another rank passes", "valid in every rank")
    assert prepared is not None
    return prepared, [(-int(most[at + 1]), int(most[at])) for at in range(1, len(most), 2)]


def _agreed(operation: str, choice: str, number: int, mpi: Any, comm: Any, x: object, prepare: Callable[[Part], None]) -> Part:
    """SizeMismatch and InvalidArgument in every rank where they differ."""
    part = Part(x, mpi) if isinstance(x, Operand) and _is_within(x) else None
    values = [0, 0] if part is None else [part.nbytes, type_code(part.window.dtype)]

    def prepared() -> Part:
        of_x = part or Part(x, mpi)
        prepare(of_x)
        return of_x

    made, (sizes, types, choices) = agree(mpi, comm, [*values, number], prepared)
    if sizes[0] != sizes[1]:
        raise size_mismatch(operation, *sizes, "bytes in every rank")
    if types[0] != types[1]:
        raise invalid(operation, "elements of several types", "of one type in every rank")
    if choices[0] != choices[1]:
        raise invalid(choice, choices[1], "the same in every rank")
    return made


def _is_within(x: Operand) -> bool:
    return x.offset <= x.window.size and (x.count or 0) <= x.window.size - x.offset


def broadcast(x: Operand, root: int, comm: MPI.Intracomm | None = None) -> None:
    """Every rank gets what the buffer of `root` holds: ``mpi.broadcast(unimem.readwrite(x), 0)``. A collective call: every rank of `comm` makes it, the
    root with `read` or `readwrite`, the others with `write` or `readwrite`, of equally many elements of one type. What a device has comes to the
    host first; what is received counts as written on the host, and on the root nothing does.

    The ranks agree on size, type and root first, by one reduction of 56 bytes: where they differ, or one passes what is not valid, or cannot bring what it sends,
    every rank raises SizeMismatch, InvalidArgument or its own error, and nothing has changed. Else as `send`."""
    mpi = engine("mpi.broadcast")
    comm = one_group(mpi, comm)
    me = comm.Get_rank()

    def prepare(part: Part) -> None:
        if rank_within("root", root, comm.Get_size()) != me:
            part.require_received("mpi.broadcast")
            return
        Mapped(part.require_sent().window, MapMode.READ).end()  # it is on the host, or cannot come there

    try:
        number = rank_within("root", root, comm.Get_size())
    except InvalidArgument:
        number = -1  # `prepare` says so
    part = _agreed("mpi.broadcast", "root", number, mpi, comm, x, prepare)
    with Mapped(part.window, MapMode.READ if number == me else MapMode.DISCARD) as mapped:
        call("MPI_Bcast", comm.Bcast, part.message(mapped.memory), number)
        mapped.keep()


def all_reduce(x: Operand, reduction: Reduction = Reduction.SUM, comm: MPI.Intracomm | None = None) -> None:
    """Every rank gets, element by element, the sum (or another reduction) of what all of them hold: ``mpi.all_reduce(unimem.readwrite(x))``. A collective call on
    integers and floating-point numbers, equally many of one type in every rank; it agrees on that first, as `broadcast` does. InvalidArgument for
    other elements, and for an operand that is not `readwrite`."""
    mpi = engine("mpi.all_reduce")
    comm = one_group(mpi, comm)

    def prepare(part: Part) -> None:
        number_in(Reduction, "reduction", reduction)
        Mapped(part.require_reduced("mpi.all_reduce").window, MapMode.READ).end()

    number = list(Reduction).index(reduction) if isinstance(reduction, Reduction) else -1
    part = _agreed("mpi.all_reduce", "reduction", number, mpi, comm, x, prepare)
    operations = {Reduction.SUM: mpi.SUM, Reduction.PRODUCT: mpi.PROD, Reduction.MINIMUM: mpi.MIN, Reduction.MAXIMUM: mpi.MAX}
    with Mapped(part.window, MapMode.READ_WRITE) as mapped:
        call("MPI_Allreduce", comm.Allreduce, mpi.IN_PLACE, part.message(mapped.memory), operations[reduction])
        mapped.keep()
