"""Every state of the library's that a program may be in when it ends: by itself, by `exit` on another thread, and by Ctrl-C.

Each state is a process of its own, all of them run at the same time, and each has far longer than it takes.
"""

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

import unimem

pytestmark = pytest.mark.check

PATIENCE = 40  # seconds for one of several on a busy machine; what hangs never ends

BEGIN = """
import atexit, gc, os, signal, sys, threading, time
import numpy as np
import unimem
from unimem import Kernel, UnifiedBuffer, launch, read, readwrite, write

class Slow:
    "A Python kernel under way, which ends when `go` is set, or after two seconds."
    def __init__(self, *buffers, within=lambda: None):
        self.go, self.begun = threading.Event(), threading.Event()
        def slow(*arrays):
            self.begun.set()
            within()
            self.go.wait(2)
            for one in arrays: one += 1
        self.event = launch(Kernel("slow").host(slow), 1, *map(readwrite, buffers))
        self.begun.wait()

def ready():
    "Whoever started this may press Ctrl-C from here on."
    print("ready", flush=True)

def on(device, value=1, count=10):
    return UnifiedBuffer(count, device=device).fill(value)
"""

# What the process does; it says `ready` where it can be interrupted. By itself it ends well.
STATES = {
    "nothing to do": "ready()",
    "a kernel on cpu, its wrapped array dropped": """
        buffer = UnifiedBuffer.from_array(np.ones(10, np.float32), device="cpu")
        slow = Slow(buffer)
        del buffer
        ready()
        """,
    "a kernel on cpu, its wrapped array dropped in the kernel by the collector": """
        class Knot: pass
        knot = Knot(); knot.self = knot
        knot.buffer = UnifiedBuffer.from_array(np.ones(10, np.float32), device="cpu")
        gone = []
        def collects():
            global knot
            del knot
            gc.collect()
            gone.append(True)
        slow = Slow(knot.buffer, within=collects)
        ready()
        while not gone: time.sleep(0.001)
        """,
    "a kernel on cpu, its buffer in a knot until the end": """
        class Knot: pass
        knot = Knot(); knot.self = knot; knot.buffer = on("cpu")
        gc.disable()
        slow = Slow(knot.buffer)
        del knot
        ready()
        """,
    "a kernel that looks at a buffer another thread uses": """
        device = unimem.make_sim()
        buffer, used = on(device), on(unimem.make_sim())
        other = Slow(used)
        user = threading.Thread(target=used.to_numpy)
        user.start()
        slow = Slow(buffer, within=lambda: used.valid_on_host)
        ready()
        user.join()
        """,
    "a kernel that looks at its own buffer": """
        buffer, seen = on("sim"), []
        def looks():
            try: buffer.to_numpy()
            except unimem.UnsupportedOperation as error: seen.append("would never end" in str(error))
        slow = Slow(buffer, within=looks)
        ready()
        slow.event.wait()
        assert seen == [True], seen
        """,
    "a kernel that synchronizes its own device": """
        device, seen = unimem.make_sim(), []
        def waits():
            try: device.synchronize()
            except unimem.UnsupportedOperation as error: seen.append("would never end" in str(error))
        slow = Slow(on(device), within=waits)
        ready()
        slow.event.wait()
        assert seen == [True], seen
        """,
    "two kernels that wait for each other": """
        def waits(other):
            for _ in range(1000):
                if other: break
                time.sleep(0.001)
            try: other[0].event.wait()
            except unimem.Error: pass
        first, second = [], []
        a = Slow(on(unimem.make_sim()), within=lambda: waits(second))
        first.append(a)
        b = Slow(on(unimem.make_sim()), within=lambda: waits(first))
        second.append(b)
        ready()
        for one in (a, b):
            try: one.event.wait()
            except unimem.Error: pass
        """,
    "waiting for an event": "slow = Slow(on('sim')); ready(); slow.event.wait()",
    "waiting for an event on cpu": "slow = Slow(on('cpu')); ready(); slow.event.wait()",
    "waiting for a buffer": "buffer = on('sim'); slow = Slow(buffer); ready(); buffer.to_numpy()",
    "waiting at a buffer's lock": """
        buffer = on("sim")
        slow = Slow(buffer)
        user = threading.Thread(target=buffer.to_numpy)
        user.start()
        ready()
        buffer.valid_on_host
        """,
    "waiting for room on a device": """
        device = unimem.make_sim("memory=1MiB")
        large, next = on(device, 1, 200_000), on(device, 2, 200_000)
        slow = Slow(large)
        ready()
        next.sync_to_device()
        """,
    "waiting for a device": "device = unimem.make_sim(); slow = Slow(on(device)); ready(); device.synchronize()",
    "awaiting an event": """
        import asyncio
        async def awaits():
            slow = Slow(on("sim"))
            ready()
            await slow.event
        asyncio.run(awaits())
        """,
    "a daemon thread that waits": """
        buffer = on("sim:latency=1s")
        threading.Thread(target=buffer.sync_to_device, daemon=True).start()
        ready()
        """,
    "daemon threads in the middle of calls": """
        def goes_on(buffer):
            while True: buffer.fill(1)
        for _ in range(4): threading.Thread(target=goes_on, args=(on("sim"),), daemon=True).start()
        time.sleep(0.05)
        ready()
        """,
    "daemon threads that go on launching Python kernels": """
        inc = Kernel("inc").host(lambda x: np.add(x, 1, out=x))
        def goes_on(buffer):
            while True: launch(inc, 1, readwrite(buffer))
        for device in ("sim", "cpu"): threading.Thread(target=goes_on, args=(on(device),), daemon=True).start()
        time.sleep(0.05)
        ready()
        """,
    "a daemon thread that waits for a kernel to read what it writes": """
        buffer = on("sim")
        slow = Slow(buffer)
        threading.Thread(target=buffer.to_numpy, daemon=True).start()
        ready()
        """,
    "use at exit": "buffer = on('sim'); atexit.register(lambda: buffer.fill(2).to_numpy()); ready()",
    "a stream": """
        with open("data.bin", "wb") as file: file.truncate(1 << 20)
        ready()
        unimem.stream_file("data.bin", unimem.affine(1, 1), output="out.bin", chunk_bytes="16KiB", device="sim:h2d=500KB/s")
        """,
}

# Where another thread ends the process; the exit code says that it did.
EXITS = {
    "os._exit on another thread": ("threading.Thread(target=lambda: os._exit(7)).start(); slow.event.wait()", 7),
    "sys.exit on another thread, which ends that alone": (
        "thread = threading.Thread(target=lambda: sys.exit(7)); thread.start(); thread.join(); slow.go.set(); slow.event.wait()",
        0,
    ),
    "sys.exit on the main thread": ("sys.exit(7)", 7),
    "exit of C on another thread": (
        "import ctypes; slow.go.set(); slow.event.wait(); threading.Thread(target=lambda: ctypes.CDLL(None).exit(7)).start(); time.sleep(30)",
        7,
    ),
}


def begin(code, folder):
    folder.mkdir()
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + textwrap.dedent(code)],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(process, interrupt):
    """How it ended, what it said besides, and whether it was waited for in vain."""
    try:
        if interrupt:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=PATIENCE)
        return process.returncode, said.removeprefix("ready\n"), complaints
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler tells where it hung
        return "hung", *process.communicate()


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """All of them, some at the same time: they wait more than they work."""
    folder = tmp_path_factory.mktemp("ends")
    runs = [(name, code, interrupt) for name, code in STATES.items() for interrupt in (False, True)]
    drivers = [one.id for one in unimem.devices() if one.backend == "opencl"]
    for device in ["cpu", "sim", *drivers]:
        under_way = f"slow = Slow(on('cpu')); buffer = on({device!r}, 1, 1 << 20); pending = buffer.prefetch(); {ADDS}; "
        runs += [(f"{name}, {device}", under_way + code, False) for name, (code, _) in EXITS.items()]

    def run(number):
        name, code, interrupt = runs[number]
        return (name, interrupt), (end(begin(code, folder / str(number)), interrupt), sorted(os.listdir(folder / str(number))))

    with ThreadPoolExecutor(6) as several:
        return dict(several.map(run, range(len(runs))))


ADDS = (
    "add = Kernel('add').host(lambda x: np.add(x, 1, out=x))"
    ".source('UNIMEM_KERNEL add(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] += 1.0f; }')"
    "; work = [launch(add, buffer.size, readwrite(buffer)) for _ in range(3)]"
)


@pytest.mark.parametrize("state", STATES)
def test_the_process_ends_by_itself(ends, state):
    (code, said, complaints), files = ends[state, False]
    assert (code, said, complaints) == (0, "", "")
    assert files == (["data.bin", "out.bin"] if state == "a stream" else [])


@pytest.mark.parametrize("state", STATES)
def test_the_process_ends_by_ctrl_c(ends, state):
    """By the signal, or by itself where all but Python's own end was over; no output is left half written."""
    (code, said, complaints), files = ends[state, True]
    assert said == "" and code in (0, 1, -signal.SIGINT), (code, said, complaints)
    assert "Fatal Python error" not in complaints and "terminate called" not in complaints, complaints
    assert complaints == "" or "KeyboardInterrupt" in complaints  # Python says nothing when it has all but ended
    if state == "a stream":
        assert (code, files) == (-signal.SIGINT, ["data.bin"])


@pytest.mark.parametrize("device", ["cpu", "sim", *(one.id for one in unimem.devices() if one.backend == "opencl")])
@pytest.mark.parametrize("way", EXITS)
def test_exit_with_work_in_flight(ends, way, device):
    (code, said, complaints), _ = ends[f"{way}, {device}", False]
    assert (code, said, complaints) == (EXITS[way][1], "", "")
