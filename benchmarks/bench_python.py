"""What the Python package costs beside NumPy and Python itself: properties, a warm pool, copies, launches. Each pair is measured by turns
in this run, and the least of many short rounds counts, since nothing makes a round shorter than it is.

    ./dev bench --only python [--quick] [--device ID]      sim by default: a device with memory of its own, made of the host's
"""

from __future__ import annotations

import argparse
import gc
import mmap
import multiprocessing
import pickle
from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

import unimem
from unimem import UnifiedBuffer

MIB = 1 << 20


def spend(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds of one call, the loop's own included: it is the rival's as well."""
    turns = range(calls)
    begin = perf_counter_ns()
    for _ in turns:
        call()
    return (perf_counter_ns() - begin) / calls


def by_turns(ours: Callable[[], object], theirs: Callable[[], object], calls: int, rounds: int) -> list[tuple[float, float]]:
    spend(ours, calls), spend(theirs, calls)
    return [(spend(ours, calls), spend(theirs, calls)) for _ in range(rounds)]


def least(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return min(one for one, _ in pairs), min(other for _, other in pairs)


def verdict(what: str, value: float, unit: str, target: float, at_least: bool = False) -> None:
    met = value >= target if at_least else value <= target
    print(f"  {what:<78} {value:9.3f} {unit:<3} target {'≥' if at_least else '≤'} {target:g}: {'met' if met else 'MISSED'}")


def figure(what: str, value: float, unit: str) -> None:
    print(f"  {what:<78} {value:9.3f} {unit}")


class Bare:
    """The property that ours are measured against."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 1

    @property
    def value(self) -> int:
        return self._value


def properties(device: unimem.Device, rounds: int) -> None:
    print("properties of a synchronized buffer, against a property written in Python")
    buffer = UnifiedBuffer(1000, device=device)
    buffer.host[:] = 1
    buffer.synchronize()
    assert buffer.state is unimem.BufferState.SYNCHRONIZED
    bare = Bare()

    # Loops of their own, unrolled: a call in between would cost more than what is measured.
    def state() -> None:
        b = buffer
        b.state; b.state; b.state; b.state; b.state; b.state; b.state; b.state; b.state; b.state  # fmt: skip

    def host() -> None:
        b = buffer
        b.host; b.host; b.host; b.host; b.host; b.host; b.host; b.host; b.host; b.host  # fmt: skip

    def plain() -> None:
        b = bare
        b.value; b.value; b.value; b.value; b.value; b.value; b.value; b.value; b.value; b.value  # fmt: skip

    for name, ours in (("state", state), ("host", host)):
        mine, theirs = least(by_turns(ours, plain, 2000, rounds))
        verdict(f".{name}: {mine / 10:.0f} ns, a Python property {theirs / 10:.0f} ns", mine / theirs, "×", 4)


def pool(device: unimem.Device, rounds: int) -> None:
    print("a warm pool, against new memory of NumPy's, as malloc gives it")
    lender = unimem.MemoryPool(device=device)
    shape, dtype = (4 * MIB,), np.float32
    lent = lender.acquire(shape, dtype)
    lent.fill(1)
    lender.release(lent)
    del lent

    def ours() -> None:
        lender.release(lender.acquire(shape, dtype))

    def theirs() -> None:
        fresh = np.empty(shape, dtype)
        fresh[::1024] = 1  # each of its pages

    mine = min(spend(ours, 2000) for _ in range(rounds))
    fresh = min(spend(theirs, 3) for _ in range(max(rounds // 4, 5)))
    stats = lender.stats()
    assert stats.misses == 1, stats
    verdict("acquire + release of 16 MiB", mine / 1000, "µs", 2)
    verdict(f"the same against np.empty and a first touch of its pages, {fresh / 1000:.0f} µs", mine / fresh, "×", 1 / 20)


def copies(device: unimem.Device, rounds: int, sizes: list[int]) -> None:
    print("copies, against NumPy's: its time over ours")
    for size in sizes:
        source = np.random.default_rng(1).integers(0, 255, size, np.uint8)
        touched = np.zeros(size, np.uint8)
        touched[:] = 1
        buffer = UnifiedBuffer(size, np.uint8, device=device)
        buffer.copy_from(source)
        calls = max(1, 4 * MIB // size)
        text = unimem.format_size(size)
        pairs = by_turns(lambda b=buffer, s=source: b.copy_from(s), lambda t=touched, s=source: np.copyto(t, s), calls, rounds)
        mine, theirs = least(pairs)
        verdict(f"copy_from {text}, np.copyto into touched memory", theirs / mine, "×", 0.95, at_least=True)
        assert (buffer.to_numpy() == source).all()
        buffer.synchronize()
        pairs = by_turns(buffer.to_numpy, touched.copy, calls, rounds)
        mine, theirs = least(pairs)
        verdict(f"to_numpy {text}, ndarray.copy", theirs / mine, "×", 0.95, at_least=True)
        assert buffer.statistics.device_to_host_copies == 0


def small_copies(device: unimem.Device, rounds: int) -> None:
    source, target = np.ones(16, np.uint8), np.zeros(16, np.uint8)
    buffer = UnifiedBuffer(16, np.uint8, device=device)
    mine, theirs = least(by_turns(lambda: buffer.copy_from(source), lambda: np.copyto(target, source), 500, rounds))
    figure(f"copy_from of 16 bytes, which is what a call costs; np.copyto: {theirs / 1000:.3f} µs", mine / 1000, "µs")


SCALE = """
UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) {
  UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a;
}
"""


def launches(device: unimem.Device, rounds: int) -> None:
    print("launches, against the same launches made in C++; the work itself is waited for outside")
    compiling = next((one for one in (device, *unimem.devices()) if unimem.device_info(one).compiles_source), None)
    kernel = unimem.Kernel("scale").source(SCALE).host(lambda x, a: None)
    if compiling is None:
        print("  left out: no device here compiles kernels")
    else:
        buffer = UnifiedBuffer(64, device=compiling)
        buffer.fill(1)
        count = 20

        def from_python() -> float:
            operand = unimem.readwrite(buffer)
            begin = perf_counter_ns()
            for _ in range(count):
                unimem.launch(kernel, 64, operand, 1.0)
            spent = perf_counter_ns() - begin
            compiling.synchronize()
            return spent / count / 1000

        def from_cpp() -> float:
            spent = unimem._kernels._time_launches(kernel, 64, count, unimem.readwrite(buffer), 1.0)
            compiling.synchronize()
            return spent / count * 1e6

        from_python(), from_cpp()
        pairs = [(from_python(), from_cpp()) for _ in range(rounds)]
        ours, theirs = least(pairs)
        verdict(f"{compiling.id}: a launch from Python takes {ours:.1f} µs, from C++ {theirs:.1f} µs: more by", ours - theirs, "µs", 5)
        assert (buffer.to_numpy() == 1).all()
    buffer = UnifiedBuffer(64, device=device)
    buffer.fill(1)
    buffer.sync_to_device()
    if unimem.device_info(device).runs_host_form:
        whole = min(spend(lambda: unimem.launch(kernel, 64, unimem.readwrite(buffer), 1.0).wait(), 50) for _ in range(rounds))
        figure(f"{device.id}: a Python function as a kernel, launched and waited for", whole / 1000, "µs")


def pickles(device: unimem.Device, rounds: int) -> None:
    print("pickle protocol 5 out of band, against NumPy's own; what copies the bytes on their way is the transport's business")
    array = np.ones(64 * MIB, np.uint8)
    buffer = UnifiedBuffer(array.size, np.uint8, device=device)
    buffer.copy_from(array)

    def dumped(what: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
        frames: list[pickle.PickleBuffer] = []
        return pickle.dumps(what, 5, buffer_callback=frames.append), frames

    head, frames = dumped(buffer)
    plain_head, plain_frames = dumped(array)
    arrived, plain_arrived = [[bytearray(one) for one in each] for each in (frames, plain_frames)]
    loaded = pickle.loads(head, buffers=arrived)
    assert np.shares_memory(loaded.host, np.frombuffer(arrived[-1], np.uint8)) and (loaded.host == array).all()
    for what, ours, theirs in (
        ("dumps", lambda: dumped(buffer), lambda: dumped(array)),
        ("loads", lambda: pickle.loads(head, buffers=arrived), lambda: pickle.loads(plain_head, buffers=plain_arrived)),
    ):  # fmt: skip
        mine, their = least(by_turns(ours, theirs, 100, rounds))
        figure(f"{what} of 64 MiB; of an array {their / 1000:.3f} µs", mine / 1000, "µs")


def array_of(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


def buffer_of(size: int) -> UnifiedBuffer:
    return UnifiedBuffer(size, np.uint8).fill(1)


def pools(rounds: int) -> None:
    print("multiprocessing.Pool, one worker, whose task makes 64 MiB and returns it")
    size = 64 * MIB
    ways = multiprocessing.get_context("spawn")
    with ways.Pool(1) as workers:

        def returned(make: Callable[[int], object], look: Callable[[object], object]) -> Callable[[], None]:
            def call() -> None:
                assert look(workers.apply(make, (size,))) == 1

            return call

        ours = returned(buffer_of, lambda one: one.host[-1])
        theirs = returned(array_of, lambda one: one[-1])
        mine, their = least(by_turns(ours, theirs, 1, rounds))
        verdict(f"a buffer {mine / 1e6:.1f} ms, an array {their / 1e6:.1f} ms: NumPy's time over ours", their / mine, "×", 5, at_least=True)
        made = min(spend(lambda: buffer_of(size), 1) for _ in range(rounds))
        figure("of it, what making and filling a buffer takes in one process", made / 1e6, "ms")


def round_trips(device: unimem.Device, rounds: int) -> None:
    print("pickle protocol 5, there and back: NumPy's time over ours")
    size = 256 * MIB
    array = np.ones(size, np.uint8)
    buffer = UnifiedBuffer(size, np.uint8, device=device)
    buffer.copy_from(array)

    def in_band(what: object) -> None:
        pickle.loads(pickle.dumps(what, 5))

    def out_of_band(what: object) -> None:
        frames: list[pickle.PickleBuffer] = []
        head = pickle.dumps(what, 5, buffer_callback=frames.append)
        arrived = [bytearray(one) for one in frames]  # what a transport does to them
        pickle.loads(head, buffers=arrived)

    mine, their = least(by_turns(lambda: in_band(buffer), lambda: in_band(array), 1, rounds))
    verdict(f"256 MiB in band: {mine / 1e6:.0f} ms, an array {their / 1e6:.0f} ms", their / mine, "×", 0.95, at_least=True)
    # The copy alone: what begins at a page, as a buffer does, is copied to where malloc puts it at 0.8 of the rate of what malloc has put
    # somewhere, NumPy's arrays among it.
    mine, their = least(by_turns(lambda: out_of_band(buffer), lambda: out_of_band(array), 1, rounds))
    page = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    page[:] = 1
    paged = min(spend(lambda: out_of_band(page), 1) for _ in range(rounds))
    verdict(f"256 MiB out of band, the frame copied once: an array at a page {paged / 1e6:.0f} ms", paged / mine, "×", 0.95, at_least=True)
    figure(f"the same; an array where NumPy puts it: {their / 1e6:.0f} ms", mine / 1e6, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench_python", description="The Python package beside NumPy.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--device", default="sim", help="where the buffers are (sim)")
    given = parser.parse_args()
    device = unimem.device(given.device)
    rounds = 20 if given.quick else 200
    print(f"unimem {unimem.__version__} on {device.id}, NumPy {np.__version__}")
    gc.disable()
    properties(device, rounds)
    pool(device, rounds)
    copies(device, max(rounds // 5, 15), [MIB, 64 * MIB])
    small_copies(device, max(rounds // 4, 5))
    pickles(device, max(rounds // 4, 5))
    round_trips(device, max(rounds // 20, 3))
    pools(max(rounds // 20, 3))
    launches(device, rounds)


if __name__ == "__main__":
    main()
