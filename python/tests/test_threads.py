"""Everything at once on many threads: nobody waits for ever, nobody sees another's bytes, and every failure is told."""

import gc
import os
import random
import threading

import numpy as np
import pytest

import unimem
from unimem import Kernel, KernelError, MemoryPool, UnifiedBuffer, launch, readwrite, registry

pytestmark = pytest.mark.check

INCREMENT = Kernel("increment").host(lambda x: np.add(x, 1, out=x))
BROKEN = Kernel("broken").host(lambda x: 1 / 0)


class World:
    def __init__(self):
        self.pool = MemoryPool(device=unimem.make_sim("memory=64MiB"))
        self.devices = [unimem.make_sim("memory=32MiB") for _ in range(2)]
        self.shared = UnifiedBuffer(1000, device=self.devices[0]).fill(3)


def lend(world, draw, mark):
    buffer = world.pool.acquire((draw.choice([10, 100, 1000]),))
    buffer.host[:] = mark
    kept = buffer.host if draw.random() < 0.3 else None
    part = buffer.slice(0, 5) if draw.random() < 0.3 else None
    world.pool.release(buffer)
    assert kept is None or (kept == mark).all()
    assert part is None or (part.to_numpy() == mark).all() or part.state is unimem.BufferState.UNINITIALIZED


def compute(world, draw, mark):
    buffer = UnifiedBuffer(draw.choice([10, 5000, 100_000]), device=draw.choice(world.devices)).fill(mark)
    launches = draw.randrange(5)
    for _ in range(launches):
        launch(INCREMENT, 1, readwrite(buffer))
    assert (buffer.to_numpy() == mark + launches).all()


def read_shared(world, draw, mark):
    world.shared.on(draw.choice(world.devices))
    assert (world.shared.to_numpy() == 3).all()


def wrap(world, draw, mark):
    source = np.full(100, mark, np.float64)
    buffer = UnifiedBuffer.from_array(source, device=draw.choice(world.devices))
    buffer.sync_to_device()
    buffer.host[:] += 1
    assert (buffer.device.to_numpy() == mark + 1).all()


def pass_on(world, draw, mark):
    buffer = UnifiedBuffer(10)
    name = registry().publish(buffer)
    registry().open(name).fill(mark)
    registry().release(name)
    assert (buffer.to_numpy() == mark).all()


def free(world, draw, mark):
    buffer = UnifiedBuffer(1000, device=draw.choice(world.devices))
    kept = buffer.host
    kept[:] = 1
    buffer.free()
    kept[:] = 2
    buffer.fill(mark)
    assert (kept == 2).all() and (buffer.to_numpy() == mark).all()


def fail(world, draw, mark):
    buffer = UnifiedBuffer(64, device=draw.choice(world.devices)).fill(mark)
    with pytest.raises(KernelError, match="ZeroDivisionError"):
        launch(BROKEN, 1, readwrite(buffer)).wait()


def collect(world, draw, mark):
    gc.collect()


@pytest.mark.timeout(900)
def test_everything_at_once(request):
    seed = int(os.environ.get("UNIMEM_TEST_SEED", random.randrange(1 << 32)))
    print(f"UNIMEM_TEST_SEED={seed}")
    turns = 2000 if request.config.getoption("--long") else 150
    world = World()
    failures = []

    def work(mark):
        draw = random.Random(seed + mark)
        try:
            for _ in range(turns):
                draw.choice([lend, lend, compute, read_shared, wrap, pass_on, free, fail, collect])(world, draw, mark)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failures:
        raise failures[0]
    assert world.pool.stats().active_buffers == 0 and len(registry()) == 0
