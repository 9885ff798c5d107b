"""Files of any size, chunk by chunk through a device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import _unimem
from ._arguments import ALL, count_of, number_of, path_of, size_of
from ._devices import chosen
from ._elements import Elements
from ._errors import KernelError, invalid
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


_RESULTS = {one.__name__: one for one in (HistogramResult, StatisticsResult, MappingResult)}


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
    seconds: float
    result: HistogramResult | StatisticsResult | MappingResult
    host_to_device_bytes: int
    device_to_host_bytes: int
    peak_device_bytes: int
    pool: dict[str, Any]

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


def mapping(kernel: Kernel, element: str | None = None) -> StreamKernel:
    """A kernel ``(in, out, count)`` of one's own, in its source form (docs/kernels.md). Gives a MappingResult."""
    if kernel._native is None:
        reason = "streams need its source form: a Python function is not called chunk by chunk"
        raise KernelError._of(f"kernel '{kernel.name}': {reason}", kernel.name, reason, "")
    return _unimem._mapping(kernel._native, _element(element))


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
            bar.total = total
            bar.update(done - bar.n)

        yield show


def stream_file(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    kernel: StreamKernel | Kernel,
    *,
    chunk_bytes: int | str = 64 << 20,
    buffers: int = 3,
    device: Device | str | None = None,
    output: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    element: str | None = None,
    memory_limit: int | str | None = None,
    manager: MemoryManager | None = None,
    progress: Progress | bool | None = None,
    _stop: _unimem._Stop | None = None,
) -> StreamResult:
    """Runs a kernel over a file of any size, raw or ``.npy``, or an array of one, ``"FILE.safetensors#NAME"`` or ``"FILE.npz#NAME"``: `histogram()`,
    `statistics()`, `affine(…)`, or a `Kernel`.

    Reading, copying, computing and writing overlap. `element`: "u8" … "f64", where neither the kernel nor the file says it. Sizes
    are bytes, or text such as ``"64MiB"``. `memory_limit` bounds the device memory in use; too small for all buffers uses fewer, too
    small for one chunk is OutOfMemory. `progress` is told (bytes done, bytes in all); None shows a bar on a terminal where
    tqdm is installed. What it raises ends the stream, and so does Ctrl-C. Raises IoError, InvalidArgument, KernelError, … as in C++;
    whatever goes wrong, no part of the output stays behind.
    """
    work = mapping(kernel) if isinstance(kernel, Kernel) else kernel
    if not isinstance(work, StreamKernel):
        raise invalid("kernel", type(kernel).__name__, "histogram(), statistics(), affine(…), mapping(…) or a Kernel")
    name = path_of("path", path)
    with _shown(progress, name) as show:
        done = _unimem._stream(
            name, work, size_of("chunk_bytes", chunk_bytes), count_of("buffers", buffers), chosen(device),
            "" if output is None else path_of("output", output), element or "", ALL if memory_limit is None else size_of("memory_limit", memory_limit),
            native(manager), show, _stop or _unimem._Stop(),
        )  # fmt: skip
    kind, *fields = done.pop("result")
    return StreamResult(**done | {"result": _RESULTS[kind](*fields), "pool": json.loads(done["pool"])})


async def stream_file_async(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], kernel: StreamKernel | Kernel, **options: Any
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
