"""Files of any size, chunk by chunk through a device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _unimem
from ._arguments import ALL, AnyPath, access_of, count_of, flag_of, number_of, path_of, size_of
from ._devices import chosen, default_device
from ._elements import Elements
from ._errors import Error, KernelError, invalid
from ._kernels import Kernel
from ._manager import MemoryManager, native
from ._records import Record
from ._tables import pairs
from ._unimem import Device, StreamKernel

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class HistogramResult(Record):
    """How often each byte value occurs, and Shannon's entropy of that."""

    counts: tuple[int, ...]
    entropy_bits_per_byte: float


@dataclass(frozen=True, slots=True)
class StatisticsResult(Record):
    """Of nothing: a count of 0, and NaN for everything else."""

    count: int
    min: float
    max: float
    mean: float
    standard_deviation: float


@dataclass(frozen=True, slots=True)
class MappingResult(Record):
    """How many elements were mapped."""

    elements: int


@dataclass(frozen=True, slots=True)
class ReductionResult(Record):
    """What a reducing kernel gives: one value for each of its work items."""

    element: str
    values: tuple[int | float, ...]


class StreamedFile(NamedTuple):
    """A file that was streamed: its bytes of data, and the checksum of each chunk of `StreamResult.checksum_bytes` of them, where one was asked for."""

    path: str
    nbytes: int
    checksums: tuple[str, ...]


_RESULTS = {one.__name__: one for one in (HistogramResult, StatisticsResult, MappingResult, ReductionResult)}


@dataclass(frozen=True, slots=True)
class StreamResult(Record):
    """What was done, and every byte that moved for it."""

    kernel: str
    device: str
    element: str
    nbytes: int
    chunks: int
    chunk_bytes: int
    buffers: int
    access: str
    direct_bytes: int
    seconds: float
    result: HistogramResult | StatisticsResult | MappingResult | ReductionResult
    host_to_device_bytes: int
    device_to_host_bytes: int
    peak_device_bytes: int
    pool: dict[str, Any]
    files: tuple[StreamedFile, ...]
    checksum: str | None
    checksum_bytes: int
    retries: int
    resumed_bytes: int

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes per second of wall time; 0 when no time was measured."""
        return self.nbytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def _values(self) -> dict[str, Any]:
        return Record._values(self) | {"gigabytes_per_second": self.gigabytes_per_second}

    def _repr_html_(self) -> str:
        rows = [(one, value) for one, value in self._values().items() if one not in ("result", "pool")]
        return pairs("StreamResult", rows) + self.result._repr_html_()


def _element(element: str | None) -> str:
    if element is None:
        return ""
    if not isinstance(element, str):
        otherwise = "; of what a buffer holds, NumPy's functions tell: buffer.mean(), np.std(buffer)" if isinstance(element, Elements) else ""
        raise invalid("element", type(element).__name__, f'the name of a type, such as "f32", or None{otherwise}')
    return element


def histogram() -> StreamKernel:
    """How often each of the 256 byte values occurs. Gives a HistogramResult."""
    return _unimem._histogram()


def statistics(element: str | None = None) -> StreamKernel:
    """Count, minimum, maximum, mean and population standard deviation. Gives a StatisticsResult."""
    return _unimem._statistics_kernel(_element(element))


def affine(scale: float, offset: float, element: str | None = None) -> StreamKernel:
    """y = scale · x + offset, rounded once to the element, integers saturating. Gives a MappingResult."""
    return _unimem._affine(_element(element), number_of("scale", scale), number_of("offset", offset))


_WHAT_STREAMS = (
    "a Python function is not called chunk by chunk; a source form streams on devices that compile it (opencl, cuda), "
    "and the built-in kernels, histogram(), statistics() and affine(…), on all, cpu and sim among them"
)


def _not_streamed(name: str, problem: str) -> Error:
    reason = f"{problem}: {_WHAT_STREAMS}"
    return KernelError._of(f"kernel '{name}': {reason}", name, reason, "")


def _native_kernel(kernel: Kernel) -> _unimem._Kernel:
    if kernel._native is None:
        raise _not_streamed(kernel.name, "streams need its source form")
    return kernel._native


@contextmanager
def _telling_what_streams(kernel: StreamKernel, device: Device | None) -> Iterator[None]:
    """C++ may give a kernel a host form that streams can call, and its error tells of that: of no use to who has written one in Python."""
    try:
        yield
    except KernelError as error:
        if getattr(error, "name", None) != kernel.name or "no host form" not in error.reason:
            raise
        on = default_device() if device is None else device
        raise _not_streamed(kernel.name, f"{on.id} does not compile its source form") from None


def mapping(kernel: Kernel, element: str | None = None) -> StreamKernel:
    """A kernel ``(in, out, count)`` of one's own, in its source form (docs/kernels.md). Gives a MappingResult."""
    return _unimem._mapping(_native_kernel(kernel), _element(element))


def reducing(kernel: Kernel, result: str, count: int, element: str | None = None) -> StreamKernel:
    """A kernel ``(in, result, count, lanes, first)`` of one's own that accumulates into `count` elements of the type `result`, in its source form:
    one work item for each, which adds to its own alone (docs/kernels.md). Gives a ReductionResult."""
    return _unimem._reducing(_native_kernel(kernel), _element(result), count_of("count", count), _element(element))


@contextmanager
def _shown(progress: Progress | bool | None, path: str) -> Iterator[Progress | None]:
    """The caller's own function; a bar of tqdm's on a terminal where tqdm is there; else nothing."""
    if callable(progress):
        yield progress
        return
    if not (progress is None or isinstance(progress, bool)):
        raise invalid("progress", repr(progress), "a function, True, False or None")
    watched = progress is True or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules))
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        watched = False
    if not watched:
        yield None
        return
    with tqdm(desc=os.path.basename(path), unit="B", unit_scale=True) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total or None  # of a pipe nobody knows it
            bar.update(done - bar.n)

        yield show


def _checksum(name: str | None) -> str:
    if name is None:
        return ""
    if name not in ("xxh3", "crc32c"):
        raise invalid("checksum", repr(name), '"xxh3", "crc32c" or None')
    return name


def _retries(value: int) -> int:
    most = 1000
    if (number := count_of("retries", value)) > most:
        raise invalid("retries", number, f"from 0 to {most}")
    return number


def _names_of(path: AnyPath | Sequence[AnyPath]) -> list[str]:
    if isinstance(path, (str, bytes, os.PathLike)):
        return [path_of("path", path)]
    several: object = path  # what is no sequence may be given all the same
    if not isinstance(several, Sequence):
        raise invalid("path", type(several).__name__, "a path, or a sequence of paths")
    return [path_of("path", one) for one in several]


def stream_file(
    path: AnyPath | Sequence[AnyPath],
    kernel: StreamKernel | Kernel,
    *,
    chunk_bytes: int | str = 64 << 20,
    buffers: int = 3,
    device: Device | str | None = None,
    output: AnyPath | None = None,
    element: str | None = None,
    memory_limit: int | str | None = None,
    access: str = "auto",
    checksum: str | None = None,
    manifest: AnyPath | None = None,
    verify: AnyPath | None = None,
    retries: int = 5,
    resume: bool = False,
    manager: MemoryManager | None = None,
    progress: Progress | bool | None = None,
    _stop: _unimem._Stop | None = None,
) -> StreamResult:
    """Runs a kernel over a file of any size, raw or ``.npy``, or an array of one, ``"FILE.safetensors#NAME"`` or ``"FILE.npz#NAME"``: `histogram()`,
    `statistics()`, `affine(…)`, or a `Kernel` in its source form on a device that compiles it (opencl, cuda): `cpu` and `sim` stream the
    built-in ones alone.

    Reading, copying, computing and writing overlap. `element`: "u8" … "f64", where neither the kernel nor the file says it. Sizes
    are bytes, or text such as ``"64MiB"``. `memory_limit` bounds the device memory in use; too small for all buffers uses fewer, too
    small for one chunk is OutOfMemory. `access`: "auto" reads past the page cache what it does not have, "direct" everything, "cached" nothing, and
    "mapped" has the device read the file in place; what cannot be had is UnsupportedOperation, and the result tells the way. `progress` is told (bytes done, bytes in all; 0:
    not known); None shows a bar on a terminal where tqdm is installed. What it raises ends the stream, and so does Ctrl-C. Raises IoError, InvalidArgument, KernelError, … as in C++;
    whatever goes wrong, no part of the output stays behind.

    A pipe is read until its end; several paths are taken as one file. `checksum`: "xxh3" or "crc32c", of every chunk of each file, while it is read; `manifest`:
    where they are written; `verify`: a manifest that the files are compared with, ChecksumMismatch names what differs. `retries`: how often a read that
    fails for a passing reason is tried again. `resume`: goes on where a stream of the same arguments was interrupted, whose unfinished `output` then
    stays beside its place, with a journal.
    """
    work = mapping(kernel) if isinstance(kernel, Kernel) else kernel
    if not isinstance(work, StreamKernel):
        raise invalid("kernel", type(kernel).__name__, "histogram(), statistics(), affine(…), mapping(…) or a Kernel")
    names = _names_of(path)
    on = chosen(device)
    with _shown(progress, names[0] if names else "") as show, _telling_what_streams(work, on):
        done = _unimem._stream(
            names, work, size_of("chunk_bytes", chunk_bytes), count_of("buffers", buffers), on,
            "" if output is None else path_of("output", output), _element(element), ALL if memory_limit is None else size_of("memory_limit", memory_limit),
            access_of(access), _checksum(checksum), "" if manifest is None else path_of("manifest", manifest), "" if verify is None else path_of("verify", verify),
            _retries(retries), flag_of("resume", resume), native(manager), show, _stop or _unimem._Stop(),
        )  # fmt: skip
    kind, *fields = done.pop("result")
    files = tuple(StreamedFile(*one) for one in done.pop("files"))
    return StreamResult(**done | {"result": _RESULTS[kind](*fields), "pool": json.loads(done["pool"]), "files": files})


async def stream_file_async(
    path: AnyPath | Sequence[AnyPath], kernel: StreamKernel | Kernel, **options: Any
) -> StreamResult:
    """The same without blocking the event loop. Cancelling it ends the stream, and waits until nothing of it is left."""
    import asyncio  # here, as in `to_thread`

    stop = _unimem._Stop()
    work = asyncio.ensure_future(asyncio.to_thread(stream_file, path, kernel, _stop=stop, **options))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.request()
        await asyncio.wait([work])
        work.exception()  # StreamCancelled, or what came before it: the caller asked not to be told
        raise
