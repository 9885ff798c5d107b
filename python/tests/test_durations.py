"""How long launches took: event.duration."""

import time

import numpy as np
import pytest

import unimem
from unimem import UnifiedBuffer


def slow(x):
    time.sleep(0.05)
    x += 1


@pytest.mark.parametrize("options", ["", "latency=1ms"])
def test_a_launch_has_the_time_of_its_kernel(options):
    device = unimem.make_sim(options)
    buffer = UnifiedBuffer(10, device=device)
    buffer.copy_from(np.zeros(10))
    kernel = unimem.Kernel("slow").host(slow)
    before = unimem.launch(kernel, 10, unimem.readwrite(buffer))
    before.wait()
    assert before.duration is None  # nobody had asked

    device.keep_durations()
    start = time.perf_counter()
    first, second = (unimem.launch(kernel, 10, unimem.readwrite(buffer)) for _ in range(2))
    second.wait()
    took = time.perf_counter() - start
    assert first.duration >= 0.05
    assert second.duration >= 0.05
    assert first.duration + second.duration <= took
    assert (buffer.to_numpy() == 3).all()


def test_a_kernel_that_failed_has_none():
    device = unimem.make_sim()
    buffer = UnifiedBuffer(10, device=device)
    device.keep_durations()

    def fails(x):
        raise ValueError("as it was told to")

    event = unimem.launch(unimem.Kernel("fails").host(fails), 10, unimem.write(buffer))
    with pytest.raises(unimem.KernelError, match="as it was told to"):
        event.wait()
    assert event.duration is None


def test_a_driver_that_keeps_no_times_is_refused():
    found = [one for one in unimem.devices() if one.id == "opencl:0"]
    if not found:
        pytest.skip("no OpenCL")
    with pytest.raises(unimem.UnsupportedOperation, match="opencl:0.*profile=1"):
        found[0].keep_durations()
    timed = unimem.device("opencl:0,profile=1")
    timed.keep_durations()
    buffer = UnifiedBuffer(100_000, device=timed)
    buffer.fill(1)
    add = unimem.Kernel("add").source(
        "UNIMEM_KERNEL add(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] += 1; }"
    )
    start = time.perf_counter()
    event = unimem.launch(add, buffer.size, unimem.readwrite(buffer))
    event.wait()
    assert 0 < event.duration <= time.perf_counter() - start
    assert (buffer.to_numpy() == 2).all()
