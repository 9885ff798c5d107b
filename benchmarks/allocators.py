"""What a warm allocation and its release cost with the allocators of RMM, CuPy and PyTorch, where they are installed.

    allocators.py [GPU]

One line each: the name, a blank, and the nanoseconds of one pair for 1 MiB (the median of several rounds), or a word that says
why there is none. Python's own calls are in the figure: an empty call is stated beside them.
"""

import statistics
import sys
import time

BYTES = 1 << 20
CALLS = 2000
ROUNDS = 9


def nanoseconds(pair) -> float:
    for _ in range(100):
        pair()
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            pair()
        rounds.append((time.perf_counter_ns() - begin) / CALLS)
    return statistics.median(rounds)


def torch_pair(gpu: int):
    import torch

    with torch.cuda.device(gpu):
        torch.cuda.init()
        allocate, release = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
        stream = torch.cuda.current_stream()
    return lambda: release(allocate(BYTES, gpu, stream))


def cupy_pair(gpu: int):
    import cupy

    cupy.cuda.Device(gpu).use()
    pool = cupy.cuda.MemoryPool()
    return lambda: pool.malloc(BYTES)  # given back when nothing refers to it, which is at once


def rmm_pair(gpu: int):
    import rmm

    rmm.reinitialize(pool_allocator=True, initial_pool_size=64 << 20, devices=gpu)
    return lambda: rmm.DeviceBuffer(size=BYTES)  # likewise


def main() -> None:
    gpu = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    print(f"an empty Python call {nanoseconds(lambda: None):.0f}", flush=True)
    for name, prepare in (("PyTorch", torch_pair), ("CuPy", cupy_pair), ("RMM", rmm_pair)):
        try:
            print(f"{name} {nanoseconds(prepare(gpu)):.0f}", flush=True)
        except ImportError:
            print(f"{name} not-installed", flush=True)
        except Exception as error:  # noqa: BLE001: whatever a package does here, the others have their turn
            print(f"{name} failed:{type(error).__name__}", flush=True)


if __name__ == "__main__":
    main()
