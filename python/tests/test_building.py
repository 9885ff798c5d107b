"""Kernels that are built ahead of their launches, and launches that leave an event loop alone."""

import asyncio
import itertools
import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from sample_buffers import check_both, synced

import unimem
from unimem import InvalidArgument, Kernel, KernelError, NotFound, launch, launch_async, read, readwrite, write

numbers = itertools.count(time.time_ns() % 10**9)


def fresh(steps=1):
    """A kernel whose text no cache knows, which adds `steps` times a number."""
    number = next(numbers)
    body = "".join(f" x_[UNIMEM_ITEM_X] += a + {number + i} - {number + i};" for i in range(steps))
    text = f"UNIMEM_KERNEL add(UNIMEM_BUFFER(int, x), int a) {{ UNIMEM_GLOBAL int* x_ = UNIMEM_DATA(int, x);{body} }}"
    return Kernel("add").source(text).host(lambda x, a: np.add(x, steps * a, out=x))


DATA = np.arange(1000, dtype=np.int32)


@pytest.fixture(params=["cpu", "sim", "opencl"])
def device(request):
    return request.getfixturevalue(request.param)


def test_a_built_kernel_is_launched_without_a_compiler(device):
    kernel = fresh()
    assert kernel.build(device) is kernel
    assert kernel._runs_function_on(device) or kernel._native._is_built(device)
    buffer = synced(device, DATA)
    launch(kernel, 1000, readwrite(buffer), 5, device=device)
    assert kernel.build(device.id) is kernel
    np.testing.assert_array_equal(buffer.to_numpy(), DATA + 5)


def test_building_goes_to_the_default_device(opencl):
    kernel = fresh()
    with opencl:
        kernel.build()
    assert kernel._native._is_built(opencl)
    assert not kernel._native._is_built(unimem.device("cpu"))


def test_a_failed_build_fails_like_a_launch(opencl, sim):
    broken = Kernel("add").source("UNIMEM_KERNEL add(UNIMEM_BUFFER(int, x)) { nonsense }")
    for attempt in (
        lambda: broken.build(opencl),
        lambda: asyncio.run(broken.build_async(opencl)),
        lambda: asyncio.run(launch_async(broken, 1, readwrite(synced(opencl, DATA)))),
    ):
        with pytest.raises(KernelError) as caught:
            attempt()
        assert "nonsense" in caught.value.build_log
    for kernel, device in ((Kernel("f").host(print), opencl), (Kernel("f").source("x"), sim), (Kernel("f"), sim)):
        with pytest.raises(KernelError) as of_build:
            kernel.build(device)
        with pytest.raises(KernelError) as of_launch:
            launch(kernel, 1, device=device)
        assert str(of_build.value) == str(of_launch.value)
    with pytest.raises(NotFound):
        broken.build("opencl:77")
    with pytest.raises(InvalidArgument, match="device"):
        broken.build(3)


async def turns_during(work):
    """How often the loop goes round until `work` has ended, and what that gives."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, await task


def test_compiling_does_not_block_the_loop(opencl):
    async def main():
        kernel = fresh(200)
        turns, built = await turns_during(kernel.build_async(opencl))
        assert built is kernel and kernel._native._is_built(opencl)
        assert turns > 20  # a task that compiles on the loop's thread lets it go round twice
        again, _ = await turns_during(kernel.build_async(opencl))
        assert again <= 2

        kernel, buffer = fresh(200), synced(opencl, DATA)
        turns, event = await turns_during(launch_async(kernel, 1000, readwrite(buffer), 2))
        assert turns > 20 and event.ready
        check_both(buffer, DATA + 400, opencl)

        orchestrator = unimem.Orchestrator()
        orchestrator.register_kernel(kernel := fresh(200))
        turns, done = await turns_during(orchestrator.execute_async("add", 1000, readwrite(buffer), -2))
        assert turns > 20 and done.device == opencl.id
        check_both(buffer, DATA, opencl)

    asyncio.run(main())


def test_launches_are_awaited(device):
    async def main():
        kernel = fresh()
        one, two = synced(device, DATA), synced(device, DATA)
        event = await launch_async(kernel, 1000, readwrite(one), 7)
        assert event.ready
        np.testing.assert_array_equal(one.to_numpy(), DATA + 7)
        await asyncio.gather(launch_async(kernel, 1000, readwrite(one), 1), launch_async(kernel, 1000, readwrite(two), 2))
        np.testing.assert_array_equal(one.to_numpy(), DATA + 8)
        np.testing.assert_array_equal(two.to_numpy(), DATA + 2)

    asyncio.run(main())


def test_a_kernels_error_comes_from_the_wait(sim):
    def fails(x):
        raise ValueError("not today")

    buffer = synced(sim, DATA)
    with pytest.raises(KernelError, match="not today"):
        asyncio.run(launch_async(Kernel("fails").host(fails), 1000, readwrite(buffer)))
    with pytest.raises(KernelError, match="not today"):
        buffer.to_numpy()  # as after `launch`: the next access is told as well
    check_both(buffer, DATA)


def test_wrong_arguments_are_told_before_compiling(opencl):
    kernel, buffer = fresh(), synced(opencl, DATA)
    for range, arguments in ((1000, (buffer, 1)), (1000, (readwrite(buffer), "1")), (-1, (readwrite(buffer), 1)), ((1, 1, 1, 1), (readwrite(buffer), 1))):
        with pytest.raises(InvalidArgument):
            asyncio.run(launch_async(kernel, range, *arguments, device=opencl))
    with pytest.raises(InvalidArgument, match="a Kernel"):
        asyncio.run(launch_async(print, 1))
    assert not kernel._native._is_built(opencl)


@pytest.mark.parametrize("how", ["launch_async", "execute_async"])
def test_a_launch_cancelled_early_does_nothing(opencl, how):
    async def main():
        kernel, buffer = fresh(200), synced(opencl, DATA)
        orchestrator = unimem.Orchestrator()
        orchestrator.register_kernel(kernel)
        launched = partial(launch_async, kernel) if how == "launch_async" else partial(orchestrator.execute_async, "add")
        task = asyncio.ensure_future(launched(1000, readwrite(buffer), 5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        kernel.build(opencl)  # after the one that goes on
        check_both(buffer, DATA, opencl)
        await launched(1000, readwrite(buffer), 5)
        check_both(buffer, DATA + 1000, opencl)

    asyncio.run(main())


def test_an_interrupted_build_launches_nothing(opencl):
    kernel, buffer = fresh(200), synced(opencl, DATA)

    async def main():
        task = asyncio.ensure_future(launch_async(kernel, 1000, readwrite(buffer), 5))
        await asyncio.sleep(0)
        assert not task.done() and not kernel._native._is_built(opencl)
        os.kill(os.getpid(), signal.SIGINT)
        await task

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert kernel._native._is_built(opencl)  # the loop's end waits for its threads
    check_both(buffer, DATA, opencl)
    launch(kernel, 1000, readwrite(buffer), 5)
    check_both(buffer, DATA + 1000, opencl)


def test_cancelled_while_it_runs_the_kernel_goes_on(sim):
    begun, go = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        go.wait()
        x += 1

    async def main():
        buffer = synced(sim, DATA)
        task = asyncio.ensure_future(launch_async(Kernel("slow").host(slow), 1000, readwrite(buffer)))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        np.testing.assert_array_equal(await buffer.to_numpy_async(), DATA + 1)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["launch_async", "execute_async"])
def test_a_waiting_launch_does_not_block_the_loop(how):
    small, go = unimem.make_sim("memory=1MiB"), threading.Event()

    def fills(x):
        assert go.wait(20), "the loop stood still"
        x += 1

    async def main():
        first, second = (unimem.UnifiedBuffer(700_000, np.uint8, device=small).zeros() for _ in range(2))
        launch(Kernel("fills").host(fills), 1, readwrite(first))  # its memory can be had when it has ended
        kernel = Kernel("add").host(lambda x: np.add(x, 2, out=x))
        orchestrator = unimem.Orchestrator()
        orchestrator.register_kernel(kernel)
        launched = partial(launch_async, kernel) if how == "launch_async" else partial(orchestrator.execute_async, "add")
        task = asyncio.ensure_future(launched(1, readwrite(second)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done() and not go.is_set()
        go.set()
        await task
        assert second.valid_on(small) and second.to_numpy().tolist() == [2] * 700_000
        assert first.to_numpy().tolist() == [1] * 700_000

    asyncio.run(main())


def test_concurrent_builds_compile_once(opencl):
    kernel = fresh(50)
    threads = [threading.Thread(target=kernel.build, args=(opencl,)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    buffer, target = synced(opencl, DATA), unimem.UnifiedBuffer(1000, np.int32, device=opencl)
    launch(kernel, 1000, readwrite(buffer), 1)
    copy = Kernel("copy").source(
        "UNIMEM_KERNEL copy(UNIMEM_CONST_BUFFER(int, x), UNIMEM_BUFFER(int, y)) {"
        " UNIMEM_DATA(int, y)[UNIMEM_ITEM_X] = UNIMEM_DATA(const int, x)[UNIMEM_ITEM_X]; }"
    )
    launch(copy.build(opencl), 1000, read(buffer), write(target))
    check_both(target, DATA + 50, opencl)
