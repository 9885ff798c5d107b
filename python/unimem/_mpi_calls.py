"""What every call of `unimem.mpi` asks first: whether MPI is there and runs, whether there is such a rank and tag, what MPI is told of a buffer's
elements. And what it does last: MPI's errors are the library's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _unimem
from ._buffer import UnifiedBuffer
from ._elements import BufferSlice
from ._enums import MapMode, number_of
from ._errors import DeviceError, invalid, unsupported
from ._kernels import _READ, _READ_WRITE, _WRITE, Operand

if TYPE_CHECKING:
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

# The tags from the highest one down that C++ uses for messages in pieces among themselves.
_RESERVED_TAGS = 1 << 14

_INTENTS = {_READ: "read(…)", _WRITE: "write(…)", _READ_WRITE: "readwrite(…)"}

_MODES = {mode: number_of(mode) for mode in MapMode}

_engine: Any = None

_types: dict[np.dtype[Any], tuple[Any, bool, int]] = {}


def engine(operation: str) -> Any:
    """mpi4py's module, which starts MPI when it is imported for the first time. UnsupportedOperation without mpi4py or an MPI for it, before MPI_Init
    and after MPI_Finalize."""
    global _engine
    if _engine is None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise unsupported(operation, "this Python", f"mpi4py, with an MPI for it, cannot be imported ({error})") from error
        _engine = MPI
    if not _engine.Is_initialized():
        raise unsupported(operation, "MPI", "MPI_Init has not been called")
    if _engine.Is_finalized():
        raise unsupported(operation, "MPI", "MPI_Finalize has been called")
    return _engine


def require_threads(operation: str, mpi: Any) -> None:
    """What goes on behind the caller's back is another thread's."""
    level = mpi.Query_thread()
    if level < mpi.THREAD_MULTIPLE:
        raise unsupported(operation, "MPI", f"it needs MPI_THREAD_MULTIPLE of MPI_Init_thread, which gave level {level}")


def communicator(mpi: Any, comm: Any) -> Any:
    """That of all ranks unless another is given."""
    if comm is None:
        return mpi.COMM_WORLD
    if not isinstance(comm, mpi.Comm):
        raise invalid("comm", type(comm).__name__, "a communicator of mpi4py's")
    if comm == mpi.COMM_NULL:
        raise invalid("comm", "MPI_COMM_NULL", "a communicator")
    return comm


def one_group(mpi: Any, comm: Any) -> Any:
    """The same for collective calls."""
    comm = communicator(mpi, comm)
    if comm.Is_inter():
        raise invalid("comm", "an intercommunicator", "a communicator of one group")
    return comm


def _number(name: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise invalid(name, repr(value), "an integer")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(name, repr(value), "an integer") from None


def rank_of(name: str, value: object, mpi: Any, comm: Any, *, any_rank: bool = False) -> int:
    """A rank that there is. MPI_PROC_NULL is one in every communicator."""
    rank = _number(name, value)
    count = comm.Get_remote_size() if comm.Is_inter() else comm.Get_size()
    if 0 <= rank < count or rank == mpi.PROC_NULL or (any_rank and rank == mpi.ANY_SOURCE):
        return rank
    raise invalid(name, rank, f"a rank of the communicator, from 0 to {count - 1}")


def rank_within(name: str, value: object, count: int) -> int:
    """One of so many, where MPI_PROC_NULL is none."""
    rank = _number(name, value)
    if 0 <= rank < count:
        return rank
    raise invalid(name, rank, f"a rank of the communicator, from 0 to {count - 1}")


def tag_of(value: object, mpi: Any, *, any_tag: bool = False) -> int:
    tag = _number("tag", value)
    highest = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) - _RESERVED_TAGS
    if 0 <= tag <= highest or (any_tag and tag == mpi.ANY_TAG):
        return tag
    raise invalid("tag", tag, f"from 0 to {highest}")


def failure_of(call: str, error: MPI.Exception) -> DeviceError:
    """An error of MPI's, in the words of the C++ library."""
    code, text = error.Get_error_code(), error.Get_error_string()
    made = DeviceError._of(f"mpi: {call} failed with {text} ({code})", "mpi", call, code, text)
    assert isinstance(made, DeviceError)
    return made


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls MPI. Its error keeps none of the arguments: tracebacks may live long, and memory of buffers would be held by theirs."""
    try:
        return function(*arguments)
    except _engine.Exception as error:
        failure = failure_of(name, error)
    arguments = ()
    raise failure


class Part:
    """What an operand names, and what MPI is told of it: so many of a type, and how many bytes one of them has."""

    __slots__ = ("are_numbers", "count", "intent", "nbytes", "type", "unit", "window")

    def __init__(self, operand: object, mpi: Any) -> None:
        if not isinstance(operand, Operand):
            raise invalid("operand", type(operand).__name__, "read(buffer), write(buffer) or readwrite(buffer), of a part if that is meant")
        whole = operand.offset == 0 and operand.count is None
        window = operand.window if whole else operand.window.slice(operand.offset, operand.count)
        self.window: UnifiedBuffer | BufferSlice = window
        self.intent = operand.intent
        known = _types.get(window.dtype)
        if known is None:
            known = _types[window.dtype] = _type_of(window.dtype, mpi)
        self.type, self.are_numbers, self.unit = known
        self.nbytes: int = window.nbytes
        self.count = self.nbytes // self.unit

    def require_sent(self) -> Part:
        if self.intent == _WRITE:
            raise invalid("what is sent", _INTENTS[self.intent], "read(…)")
        return self

    def require_received(self, operation: str) -> Part:
        if self.intent == _READ:
            raise invalid("what receives", _INTENTS[self.intent], "write(…)")
        _unimem._require_writable(self.window, operation)
        return self

    def require_reduced(self, operation: str) -> Part:
        if not self.are_numbers:
            raise invalid("elements", self.window.dtype, "integers or floating-point numbers of the machine's byte order")
        if self.intent != _READ_WRITE:
            raise invalid("what is reduced", _INTENTS[self.intent], "readwrite(…)")
        _unimem._require_writable(self.window, operation)
        return self

    def message(self, memory: np.ndarray) -> list[Any]:
        """`memory` as mpi4py takes it."""
        return [memory, self.count, self.type]


def _type_of(dtype: np.dtype[Any], mpi: Any) -> tuple[Any, bool, int]:
    """MPI's type for numbers, and bytes for all others; whether it is one; its size."""
    kind, size = dtype.kind, dtype.itemsize
    if dtype.isnative and kind in "iu" and size in (1, 2, 4, 8):
        return getattr(mpi, f"{'UINT' if kind == 'u' else 'INT'}{8 * size}_T"), True, size
    if dtype.isnative and kind == "f" and size in (4, 8):
        return mpi.FLOAT if size == 4 else mpi.DOUBLE, True, size
    return mpi.BYTE, False, 1


class Mapped:
    """The host memory of elements in MPI's hands: bytes that are current there, held until `end`. What is written to them counts by `keep`, and
    without it nothing does."""

    __slots__ = ("_access", "_array")

    def __init__(self, window: UnifiedBuffer | BufferSlice, mode: MapMode) -> None:
        array, access = window._map(_MODES[mode])
        self._access: _unimem.HostWrite | _unimem.HostHold | None = access
        self._array: np.ndarray | None = array.reshape(-1).view(np.uint8)

    @property
    def memory(self) -> np.ndarray:
        assert self._array is not None
        return self._array

    def keep(self) -> None:
        access, self._access, self._array = self._access, None, None
        if isinstance(access, _unimem.HostWrite):
            access.done()

    def end(self) -> None:
        """Idempotent."""
        self._access = self._array = None

    def __enter__(self) -> Mapped:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
