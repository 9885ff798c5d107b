"""Ctrl-C ends the main thread's waits for other threads: at a buffer's lock, for room on a device, for a pool's memory."""

import textwrap

import pytest

from test_waits import said_by

pytestmark = pytest.mark.check

BEGIN = """
import os
os.environ["UNIMEM_CHECK"] = "1"
import signal, sys, threading, time
import numpy as np
import unimem
from unimem import UnifiedBuffer, launch, read, readwrite

def asleep(thread):
    "Waits until the thread has been seen asleep at three looks one after the other."
    seen = 0
    while seen < 3:
        with open(f"/proc/self/task/{thread.native_id}/stat") as state:
            seen = seen + 1 if state.read().rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.001)

class Slow:
    "A kernel under way on the buffers, which ends when it may, or after ten seconds."
    def __init__(self, *buffers):
        self.go, begun = threading.Event(), threading.Event()
        def slow(*arrays):
            begun.set()
            self.go.wait(10)
            for one in arrays: one += 1
        self.event = launch(unimem.Kernel("slow").host(slow), 1, *map(readwrite, buffers))
        begun.wait()

class Held:
    "A buffer whose lock another thread has: its bytes come to checked host memory, behind what `slow` does on the same queue."
    def __init__(self):
        self.device = unimem.make_sim("memory=2MiB")
        self.buffer = UnifiedBuffer(100_000, device=self.device).fill(1)
        nothing = unimem.Kernel("nothing").host(lambda *arrays: None)
        launch(nothing, 1, readwrite(self.buffer)).wait()  # the device alone has the bytes: every use takes the lock
        self.slow = Slow(UnifiedBuffer(10, device=self.device).fill(3))
        self.user = in_a_thread(self.buffer.sync_to_host)
    def let_go(self):
        self.slow.go.set()
        self.user.join()

def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    asleep(thread)
    return thread

def interrupted(wait, slow):
    "Presses Ctrl-C when the main thread sleeps in `wait`, and says how that ended, and whether the kernel is still under way."
    def press():
        asleep(threading.main_thread())
        os.kill(os.getpid(), signal.SIGINT)
    presser = threading.Thread(target=press)
    try:
        presser.start()
        wait()
        for _ in range(1000): pass
        return "came to an end"
    except KeyboardInterrupt:
        return "interrupted" if not slow.event.ready else "interrupted when the kernel had ended"
    finally:
        presser.join()
"""


def said(code):
    return said_by(BEGIN + textwrap.dedent(code)).splitlines()


AT_THE_LOCK = [
    "buffer.host",
    "buffer.to_numpy()",
    "np.copyto(np.empty(100_000, np.float32), buffer.host)",
    "buffer.valid_on_host",
    "buffer.valid_on(device)",
    "buffer.migrations",
    "buffer.device",
    "buffer.sync_to_host()",
    "buffer.sync_to_device()",
    "buffer.synchronize()",
    "buffer.prefetch()",
    "buffer.on(elsewhere)",
    "buffer.clone()",
    "buffer.fill(5)",
    "buffer.copy_from(np.zeros(100_000))",
    "unimem.copy(other, buffer)",
    "unimem.copy(buffer, other)",
    "buffer.slice(2, 3).to_numpy()",
    "buffer.map()",
    "buffer.mark_host_dirty()",
    "buffer.mark_device_dirty()",
    "buffer.release_device()",
    "buffer.release_host()",
    "buffer.resize(20)",
    "buffer.discard()",
    "buffer.free()",
    "launch(nothing, 1, read(buffer))",
    "launch(nothing, 1, readwrite(other), readwrite(buffer))",
]


def test_waiting_for_another_thread_ends():
    code = f"""
        nothing = unimem.Kernel("nothing").host(lambda *arrays: None)
        elsewhere = unimem.make_sim()
        for use in {AT_THE_LOCK!r}:
            held = Held()
            device, buffer, slow = held.device, held.buffer, held.slow
            other = UnifiedBuffer(100_000, device=device).fill(2)
            done = interrupted(eval("lambda: " + use), slow)  # not within `eval`, which would have the process end by the signal
            held.let_go()
            print(use, done, slow.event.wait(), buffer.to_numpy()[0], other.to_numpy()[0], sep="; ")
        """
    assert said(code) == [f"{use}; interrupted; True; 1.0; 2.0" for use in AT_THE_LOCK]


@pytest.mark.parametrize("used", [True, False], ids=["by a thread that uses it", "by a kernel"])
def test_waiting_for_room_that_is_taken_ends(used):
    code = f"""
        device = unimem.make_sim("memory=1MiB")
        nothing = unimem.Kernel("nothing").host(lambda *arrays: None)
        large, next = (UnifiedBuffer(200_000, device=device).fill(one) for one in (1, 5))
        slow = Slow(large)
        user = in_a_thread(large.to_numpy) if {used} else None
        print(interrupted(lambda: launch(nothing, 1, readwrite(next)), slow))
        slow.go.set()
        if user: user.join()
        launch(nothing, 1, readwrite(next)).wait()
        print(slow.event.wait(), (large.to_numpy() == 2).all(), (next.to_numpy() == 5).all())
        """
    assert said(code) == ["interrupted", "True True True"]


@pytest.mark.parametrize("use", ["window.to_numpy()", "window.copy_from(np.zeros(10))", "device.synchronize()"])
def test_waiting_behind_a_devices_work_ends(use):
    code = f"""
        device = unimem.make_sim()
        buffer, other = UnifiedBuffer(10, device=device).fill(1), UnifiedBuffer(10, device=device).fill(3)
        window = other.device
        slow = Slow(buffer)
        print(interrupted(lambda: {use}, slow))
        slow.go.set()
        print(slow.event.wait(), buffer.to_numpy()[0], other.to_numpy()[0])
        """
    assert said(code) == ["interrupted", "True 2.0 3.0"]


def test_own_handlers_are_called_after_the_wait():
    """It may use the buffer, and so must not be called while another thread is at it."""
    code = """
        held = Held()
        buffer, slow, user = held.buffer, held.slow, held.user
        signal.signal(signal.SIGINT, lambda *_: print("handled", slow.event.ready, buffer.to_numpy()[0]))
        def press():
            asleep(threading.main_thread())
            os.kill(os.getpid(), signal.SIGINT)
            slow.go.set()
        presser = threading.Thread(target=press)
        presser.start()
        buffer.valid_on_host
        user.join(), presser.join()
        """
    assert said(code) == ["handled True 1.0"]
