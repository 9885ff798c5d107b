"""A program as users write it, for `mypy --strict`: what it is given must be typed."""

from typing import Any

import numpy as np

import unimem
from unimem import BufferState, MemoryPool, UnifiedBuffer, get_memory_pool, mpi


def doubled(values: list[float]) -> float:
    buffer = UnifiedBuffer((len(values),), dtype=np.float64, name="typed")
    buffer.host[:] = values
    buffer.sync_to_device()
    state: BufferState = buffer.state
    scale = unimem.Kernel("scale").host(lambda x, a: np.multiply(x, a, out=x))
    event: unimem.Event = unimem.launch(scale, buffer.size, unimem.readwrite(buffer), 2.0)
    event.wait()
    moved: int = buffer.statistics.host_to_device_bytes
    free, total = unimem.get_accelerator().get_memory_info()
    assert state is BufferState.SYNCHRONIZED and moved >= 0 and free <= total
    result: np.ndarray[Any, Any] = buffer.to_numpy()
    largest = UnifiedBuffer(1, dtype=np.float64, name="largest")
    event = unimem.reduce_into(largest, buffer, "max")
    assert unimem.reduce(largest.slice(0, 1)) == result.max() and event.wait(timeout=60)
    return float(result.sum())


def passed_on(buffer: UnifiedBuffer) -> float:
    came: mpi.Received = mpi.receive(unimem.write(buffer), 0, tag=3)
    event: unimem.Event = mpi.isend(unimem.read(buffer, 0, 10), came.source + 1)
    mpi.all_reduce(unimem.readwrite(buffer), mpi.Reduction.SUM)
    with mpi.DistributedArray(buffer.size, np.float64, halo=1, device="cpu") as array:
        array.local().host[:] = buffer.host[array.own.begin : array.own.end]
        array.fence()
        seen: unimem.BufferSlice = array.read(*array.reach)
        return float(array.sum()) + seen.size + event.wait()


async def tripled(buffer: UnifiedBuffer, kernel: unimem.Kernel) -> bool:
    built: unimem.Kernel = await kernel.build("cpu").build_async(buffer.default_device)
    event: unimem.Event = await unimem.launch_async(built, buffer.size, unimem.readwrite(buffer), 3.0)
    return event.ready


def lent(pool: MemoryPool, shape: tuple[int, ...]) -> int:
    with pool.lend(shape, np.int32) as buffer:
        buffer.fill(1)
        return int(buffer.to_numpy().sum())


def named(path: str) -> int:
    tensors: unimem.Tensors = unimem.open_tensors(path, mode="c")
    sizes = {name: tensors.info(name).nbytes for name in tensors}
    buffer: UnifiedBuffer = tensors["w"]
    return buffer.nbytes + sum(sizes.values())


def told(manager: unimem.MemoryManager) -> str:
    buffer = manager.allocate((10,), np.int32, placement=unimem.Placement.HOST_ACCESSIBLE, name="told")
    decision: unimem.PlacementDecision | None = buffer.placement
    leaks: unimem.LeakReport = manager.leak_report()
    live: int = manager.usage().total.live_bytes
    assert decision is not None and leaks and live == leaks.bytes
    return decision.why() + manager.statistics.to_json()


def summed(buffer: UnifiedBuffer) -> float:
    buffer += 1
    larger: np.ndarray[Any, Any] = np.add(buffer, 1)
    return float((buffer + larger).sum()) + float(buffer.sum()) + float(np.sum(buffer.T))


if __name__ == "__main__":
    assert summed(UnifiedBuffer(2).fill(0)) == 10.0
    assert doubled([1.0, 2.0]) == 6.0
    assert lent(get_memory_pool(), (2, 3)) == 6
    assert told(unimem.MemoryManager())
