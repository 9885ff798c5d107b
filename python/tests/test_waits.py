"""Waiting that Ctrl-C ends, and waiting no longer than some time."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

import unimem
from unimem import UnifiedBuffer

pytestmark = pytest.mark.check

INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import unimem
device = unimem.device({device!r})
buffer = unimem.UnifiedBuffer(10, device=device)
host = buffer.host
buffer.fill(1)
other = unimem.make_sim()
source = unimem.UnifiedBuffer(10, device=other)
source.copy_from(np.zeros(10))
begun, go = threading.Event(), threading.Event()
def slow(x):
    begun.set()
    go.wait()
    x += 1
event = unimem.launch(unimem.Kernel("slow").host(slow), 1, unimem.readwrite(buffer))
begun.wait()  # a thread of the library's has it
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", event.ready)
go.set()
print(event.wait(), buffer.to_numpy()[0])
"""


WAITS = [
    "event.wait()",
    "event.wait(timeout=100)",
    "device.synchronize()",
    "buffer.host",
    "host[0] = 5",
    "host.sort()",
    "memoryview(buffer)",
    "buffer.to_numpy()",
    "buffer.sync_to_host()",
    "buffer.sync_to_device(other)",
    "buffer.synchronize()",
    "buffer.device",
    "buffer.on(other)",
    "buffer.copy_to(np.empty(10, np.float32))",
    "buffer.copy_from(np.zeros(10))",
    "unimem.copy(source, buffer)",
    "buffer.slice(2, 3).to_numpy()",
    "buffer.map()",
    "buffer.mark_host_dirty()",
    "buffer.mark_device_dirty()",
    "buffer.release_device()",
    "buffer.resize(20)",
]


def said_by(code):
    """What a process of its own prints that runs the code, which ends well and within half a minute."""
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


LOCKED_ELSEWHERE = """
import threading, time
import numpy as np
import unimem
device = unimem.make_sim()
buffer, other = unimem.UnifiedBuffer(10, device=device), unimem.UnifiedBuffer(10, device=device)
buffer.fill(1)
other.fill(0)
begun, go = threading.Event(), threading.Event()
def slow(x):
    begun.set()
    go.wait()
    x += 1
event = unimem.launch(unimem.Kernel("slow").host(slow), 1, unimem.readwrite(buffer))
begun.wait()
waiting = threading.Thread(target=buffer.to_numpy)  # waits with the buffer locked
waiting.start()
time.sleep(0.2)
threading.Timer(0.2, go.set).start()
{use}
waiting.join()
print(event.wait(), buffer.to_numpy()[0])
"""


@pytest.mark.parametrize(
    "use",
    ["unimem.copy(buffer, other)", "other.copy_from(buffer)", "buffer.clone()", "buffer.host", "buffer.valid_on_host", "buffer.tracking"],
)
def test_waiting_for_a_busy_buffer_releases_the_gil(use):
    assert said_by(LOCKED_ELSEWHERE.format(use=use)) == "True 2.0\n"


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_waiting_and_not_the_work(wait):
    code = INTERRUPTED.format(device="sim", wait=wait)
    said = said_by(code)
    assert said.splitlines() == ["interrupted False", "True 2.0"]


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("wait", ["event.wait()", "event.wait(timeout=100)", "device.synchronize()", "buffer.to_numpy()"])
def test_ctrl_c_ends_no_queued_work(device, wait):
    """The waiting thread does not carry it out itself, where the signal would come in the middle of it."""
    begun = "begun.wait()  # a thread of the library's has it\n"
    assert begun in INTERRUPTED
    code = INTERRUPTED.replace(begun, "").format(device=device, wait=wait)
    assert said_by(code).splitlines() == ["interrupted False", "True 2.0"]


def test_a_timed_wait_ends_in_time():
    go = threading.Event()
    kernel = unimem.Kernel("slow").host(lambda x: go.wait(20))
    for device in (unimem.make_sim(), unimem.device("cpu")):
        for _ in range(20):
            go.clear()
            event = unimem.launch(kernel, 1, unimem.readwrite(UnifiedBuffer(1, device=device).fill(0)))
            assert not event.wait(timeout=0.001)
            go.set()
            assert event.wait(timeout=20)


def test_failures_during_a_wait_are_raised_once(moved):
    device = unimem.make_sim("memory=16MiB")
    buffer = UnifiedBuffer(10, device=device)
    buffer.fill(1)
    buffer.sync_to_device()
    buffer.device.copy_from([2] * 10)
    buffer.mark_device_dirty()
    count = moved(buffer)
    assert (buffer.host == 2).all()
    assert count.since() == (0, 0, 1, 40)
    event = unimem.launch(unimem.Kernel("broken").host(lambda x: 1 / 0), 1, unimem.readwrite(buffer))
    with pytest.raises(unimem.KernelError, match="ZeroDivisionError"):
        _ = buffer.host
    assert event.ready and count.since() == (0, 0, 0, 0)
    assert (buffer.to_numpy() == 2).all()


def test_a_timed_wait_says_whether_work_ended(sim):
    buffer = UnifiedBuffer(10, device=sim)
    buffer.fill(1)
    begun, go = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        go.wait()
        x += 1

    event = unimem.launch(unimem.Kernel("slow").host(slow), 1, unimem.readwrite(buffer))
    begun.wait()
    assert event.wait(timeout=0) is False and event.wait(timeout=0.02) is False and not event.ready
    waited = []
    thread = threading.Thread(target=lambda: waited.append(event.wait()))
    thread.start()
    go.set()
    thread.join(60)
    assert waited == [True] and event.wait(timeout=0) is True and (buffer.to_numpy() == 2).all()
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises(unimem.InvalidArgument, match="timeout"):
            event.wait(timeout=wrong)


def in_a_ring(devices, wait):
    """What became of kernels that run on these devices at the same time, each waiting for the next one's event."""
    events, all_run = [], threading.Barrier(len(devices) + 1)
    outcome = [None] * len(devices)

    def kernel_of(number):
        def waits(x):
            all_run.wait(60)
            try:
                outcome[number] = wait(events[(number + 1) % len(events)])
            except unimem.Error as error:
                outcome[number] = type(error)
                raise

        return unimem.Kernel("waits").host(waits)

    buffers = [UnifiedBuffer(10, device=one).fill(0) for one in devices]
    events += [unimem.launch(kernel_of(i), 1, unimem.readwrite(one)) for i, one in enumerate(buffers)]
    all_run.wait(60)
    for one in events:
        try:
            one.wait()
        except unimem.KernelError:
            pass
    return outcome


@pytest.mark.parametrize("count", [2, 3])
def test_one_of_several_mutual_waits_is_refused(count):
    outcome = in_a_ring([unimem.make_sim() for _ in range(count)], lambda event: event.wait())
    assert sorted(one.__name__ for one in outcome) == ["KernelError"] * (count - 1) + ["UnsupportedOperation"]


@pytest.mark.parametrize("accesses", [0, 1, 2])
def test_circles_of_waits_and_accesses_are_refused_alike(accesses):
    """In the same words as in C++ (`HostQueue.ARefusalSaysWhatTheWaitIsFor`)."""
    devices = [unimem.make_sim() for _ in range(2)]
    buffers = [UnifiedBuffer(10, device=one).fill(0) for one in devices]
    events, refused, all_run = [], [], threading.Barrier(3)

    def kernel_of(number):
        def waits(x):
            all_run.wait(60)
            try:
                buffers[1 - number].to_numpy() if number < accesses else events[1 - number].wait()
            except unimem.UnsupportedOperation as error:
                refused.append(str(error))
                raise

        return unimem.Kernel("waits").host(waits)

    events += [unimem.launch(kernel_of(i), 1, unimem.readwrite(one)) for i, one in enumerate(buffers)]
    all_run.wait(60)
    for one in events:
        with pytest.raises(unimem.KernelError, match="would never end"):
            one.wait()
    assert refused == ["waiting for work is not supported on another queue: it waits for this kernel in its turn, and would never end"]


def test_timed_waits_are_not_refused():
    outcome = in_a_ring([unimem.make_sim() for _ in range(2)], lambda event: event.wait(timeout=0.05))
    assert False in outcome and set(outcome) <= {False, True}


def test_kernels_wait_along_chains_of_devices(sim, other_sim):
    buffers = [UnifiedBuffer(10, device=one).fill(0) for one in (sim, other_sim, unimem.make_sim())]
    go, begun, events = threading.Event(), threading.Semaphore(0), []

    def waits(x):
        before = events[-1] if events else None
        begun.release()
        x.fill(7 if go.wait(60) and before is None else before.wait() + 1)

    for one in buffers:
        event = unimem.launch(unimem.Kernel("waits").host(waits), 1, unimem.readwrite(one))
        assert begun.acquire(timeout=60)
        events.append(event)
    go.set()
    assert events[-1].wait() and [int(one.to_numpy().max()) for one in buffers] == [7, 2, 2]


def test_an_awaited_event_raises_the_works_error(sim):
    buffer = UnifiedBuffer(10, device=sim)
    buffer.fill(1)
    go = threading.Event()
    turns = []

    async def loop_goes_on():
        while not go.is_set():
            turns.append(1)
            if len(turns) == 20:
                go.set()
            await asyncio.sleep(0.001)

    def slow(x):
        go.wait()
        x += 1

    async def both():
        event = unimem.launch(unimem.Kernel("slow").host(slow), 1, unimem.readwrite(buffer))
        awaited, _ = await asyncio.gather(event, loop_goes_on())
        return awaited

    assert asyncio.run(both()) is True and len(turns) == 20
    assert (buffer.to_numpy() == 2).all()

    async def failing():
        await unimem.launch(unimem.Kernel("broken").host(lambda x: 1 / 0), 1, unimem.readwrite(buffer))

    with pytest.raises(unimem.KernelError, match="ZeroDivisionError"):
        asyncio.run(failing())


def test_an_interrupted_kernel_fails(sim):
    code = """
import os, signal, threading
import unimem
buffer = unimem.UnifiedBuffer(10, device="sim")
buffer.fill(1)
def interrupted(x):
    x[:] = 9
    raise KeyboardInterrupt
try:
    try:
        unimem.launch(unimem.Kernel("interrupted").host(interrupted), 1, unimem.readwrite(buffer)).wait()
    except unimem.KernelError as error:
        print("KernelError", "KeyboardInterrupt" in str(error))
    for _ in range(1000): pass
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""
    assert said_by(code).splitlines()[-1] == "KeyboardInterrupt"
