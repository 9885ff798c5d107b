"""Buffers between Dask's workers, and beyond their memory, beside NumPy's arrays as Dask itself has them: two processes on this machine, by
turns in this run.

    ./dev bench --only dask [--quick]

Needs distributed, which `./dev check` fetches (tools/interop-wheels.txt)."""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from contextlib import contextmanager
from time import perf_counter

import numpy as np
from bench_python import figure, verdict

import unimem
from unimem import UnifiedBuffer

MIB = 1 << 20


def buffer_of(number: int, size: int) -> UnifiedBuffer:
    return UnifiedBuffer(size, np.uint8, device="cpu").fill(number)


def array_of(number: int, size: int) -> np.ndarray:
    return np.full(size, number, np.uint8)


def last(one) -> int:
    return int(one[-1])


def summed(one) -> int:
    return int(np.sum(one.host if isinstance(one, UnifiedBuffer) else one, dtype=np.int64))


@contextmanager
def cluster(plugin=None, **options):
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory(prefix="unimem-bench-", dir=".") as folder:
        options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "local_directory": folder} | options
        with LocalCluster(**options) as workers, Client(workers) as client:
            if plugin is not None:
                client.register_plugin(plugin)
            yield client, sorted(client.scheduler_info()["workers"])


# One result from worker to worker


def sent(client, workers, make, size: int) -> tuple[float, float]:
    """Milliseconds from when one has it until the other has looked at its last element; and with the making of it."""
    from distributed import wait

    begin = perf_counter()
    source = client.submit(make, 3, size, workers=[workers[0]], pure=False)
    wait(source)
    there = perf_counter()
    assert client.submit(last, source, workers=[workers[1]], pure=False).result() == 3
    end = perf_counter()
    client.cancel([source])
    return (end - there) * 1e3, (end - begin) * 1e3


def results(rounds: int) -> None:
    import unimem.dask

    size = 64 * MIB
    print("a result of 64 MiB, from one worker to another of the host")
    times = {}
    for way, plugin in (("bytes", unimem.dask.MemoryPlugin()), ("memory", unimem.dask.MemoryPlugin(shared=True))):
        with cluster(plugin, memory_limit="2GiB") as (client, workers):
            kinds = {"array": array_of, "buffer": buffer_of}
            for make in kinds.values():
                sent(client, workers, make, size)
            each = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, make in kinds.items():
                    each[kind].append(sent(client, workers, make, size))
            times[way] = {kind: [sorted(column) for column in zip(*pairs, strict=True)] for kind, pairs in each.items()}
            told = client.run(unimem.dask.transfers)
            assert (told[workers[0]].handed_over, told[workers[1]].opened) == ((rounds + 1,) * 2 if way == "memory" else (0, 0)), told
    for way, kinds in times.items():
        (array, array_whole), (buffer, buffer_whole) = ((one[0][rounds // 2], one[1][rounds // 2]) for one in (kinds["array"], kinds["buffer"]))
        what = f"as {way}: a buffer {buffer:.1f} ms, an array {array:.1f} ms, medians: NumPy's time over ours"
        verdict(what, array / buffer, "×", 3, at_least=True) if way == "memory" else figure(what, array / buffer, "×")
        figure(f"the same with making it: {buffer_whole:.1f} ms, {array_whole:.1f} ms", array_whole / buffer_whole, "×")


# More than the memory


def made_and_summed(client, workers, make, count: int, size: int) -> float:
    """Seconds until all chunks have been made, and then all have been summed."""
    from distributed import wait

    begin = perf_counter()
    chunks = [client.submit(make, number, size, workers=[workers[number % 2]], pure=False) for number in range(count)]
    wait(chunks)
    sums = [client.submit(summed, chunk, workers=[workers[number % 2]], pure=False) for number, chunk in enumerate(chunks)]
    total = sum(client.gather(sums))
    spent = perf_counter() - begin
    assert total == sum(range(count)) * size
    return spent


def moved() -> int:
    statistics = unimem.default_manager().statistics
    return statistics.spilled_bytes + statistics.restored_bytes


def dasks_own(dask_worker) -> float:
    return dask_worker.data.cumulative_metrics["disk-write", "bytes"]


def graphs(rounds: int, size: int, count: int) -> None:
    import dask
    import unimem.dask

    limit = count * size // 8
    print(f"a graph of {count} chunks of {size // MIB} MiB, made and then summed, with {limit // MIB} MiB for each of two workers: four times their memory")
    # Dask begins to spill at a fraction of a worker's limit; what it watches besides, the process's memory, is not in question here.
    off = {f"distributed.worker.memory.{one}": False for one in ("spill", "pause", "terminate")}
    ours, theirs, ratios = [], [], []
    for _ in range(rounds):
        with dask.config.set({"distributed.worker.memory.target": limit / (1 << 30), **off}), cluster(memory_limit="1GiB") as (client, workers):
            theirs.append(made_and_summed(client, workers, array_of, count, size))
            assert min(client.run(dasks_own).values()) > 0, "Dask has spilled"
        plugin = unimem.dask.MemoryPlugin(limits={"host": limit})
        with dask.config.set(off), cluster(plugin, memory_limit="1GiB", data=unimem.dask.storage) as (client, workers):
            ours.append(made_and_summed(client, workers, buffer_of, count, size))
            ratios.append(max(client.run(moved).values()) / (2 * (count // 2 * size - limit)))
    verdict("bytes to files and back, of the least there are", max(ratios), "×", 1.1)
    mine, their = min(ours), min(theirs)
    verdict(f"ours {mine:.2f} s, NumPy's arrays with Dask's own spilling {their:.2f} s, the least of {rounds}", mine / their, "×", 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench_dask", description="Buffers in Dask beside NumPy's arrays.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--device", default="cpu", help="not looked at: workers use the host")
    given = parser.parse_args()
    try:
        import distributed
    except ImportError:
        print("  left out: distributed is not installed: ./dev check fetches it")
        return
    print(f"unimem {unimem.__version__}, distributed {distributed.__version__}, NumPy {np.__version__}")
    gc.collect()
    results(5 if given.quick else 21)
    for size, count in ((4 * MIB, 128), (16 * MIB, 32)):
        graphs(2 if given.quick else 5, size, count)


if __name__ == "__main__":
    sys.exit(main())
