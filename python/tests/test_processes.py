"""Processes and interpreters that begin and end with buffers in them."""

import json
import os
import stat
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.check


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        """
        import unimem, numpy as np
        everything = [unimem.UnifiedBuffer(1000, device=d).fill(1) for d in ("sim", "cpu")]
        everything += [b.host for b in everything] + [b.device for b in everything] + [b.slice(0, 5) for b in everything]
        pool = unimem.get_memory_pool(); lent = pool.acquire(10); kept = pool.acquire(20); pool.release(kept)
        unimem.registry().publish(everything[0]); wrapped = unimem.UnifiedBuffer.from_array(np.arange(5.0))
        """,
        """
        import unimem, time
        slow = unimem.Kernel("slow").host(lambda x: (time.sleep(0.5), x.__setitem__(slice(None), 3)))
        b = unimem.UnifiedBuffer(1000, device="sim")
        unimem.launch(slow, 1, unimem.write(b))
        """,
        """
        import unimem, sys
        add = unimem.Kernel("add").source('UNIMEM_KERNEL add(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] += 1.0f; }')
        kept = []
        for d in unimem.devices():
            if d.backend == "opencl":
                b = unimem.UnifiedBuffer(1 << 22, device=d).fill(1)
                kept += [b, b.host, unimem.launch(add, b.size, unimem.readwrite(b)), b.prefetch()]
                unimem.UnifiedBuffer(1 << 22, device=d).fill(1).prefetch()
        """,
        """
        import unimem, threading, time
        b = unimem.UnifiedBuffer(1000, device="sim:latency=3s")
        b.fill(1)
        threading.Thread(target=b.sync_to_device, daemon=True).start()
        time.sleep(0.3)
        """,
        """
        import unimem, gc
        class Knot: pass
        knot = Knot(); knot.self = knot; knot.buffer = unimem.UnifiedBuffer(10, device="sim"); knot.host = knot.buffer.host
        gc.disable()
        """,
        """
        import unimem, atexit
        b = unimem.UnifiedBuffer(10, device="sim")
        atexit.register(lambda: b.fill(2).to_numpy())
        """,
    ],
    ids=["live buffers", "a Python kernel in flight", "OpenCL work in flight", "a daemon thread that waits", "a knot", "use at exit"],
)
def test_the_interpreter_ends_in_order_with(code):
    result = run(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_forked_children_use_the_host():
    result = run(
        """
        import os, sys, unimem, numpy as np
        b = unimem.UnifiedBuffer(1000, device="sim")
        b.host[:] = 5
        b.sync_to_device()
        parents = unimem.default_manager(), unimem.get_memory_pool()
        assert parents[0].statistics.active_bytes >= 4000
        kept = parents[1].acquire(10)
        child = os.fork()
        if child == 0:
            assert (b.host == 5).all()
            b.host[:] = 6
            assert (b.to_numpy() == 6).all()
            try: b.sync_to_device()
            except unimem.UnsupportedOperation as e: assert "fork" in str(e), e
            else: raise AssertionError("device work in a forked child")
            assert len(unimem.registry()) == 0
            assert unimem.default_manager().statistics.active_bytes == 0
            own = unimem.default_manager().allocate(np.arange(10), device="cpu", name="own")
            assert unimem.default_manager().statistics.active_bytes >= own.nbytes and own.to_numpy()[9] == 9
            pool = unimem.get_memory_pool()
            pool.release(pool.acquire(10).zeros())
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (b.host == 5).all()
        """
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_forked_childs_own_buffers_need_no_queue():
    result = run(
        """
        import os, sys, unimem, numpy as np
        b = unimem.UnifiedBuffer(1 << 20, np.uint8, device="sim", shared=True).fill(1)
        shared = unimem.registry().publish(b, cross_process=True)
        b.sync_to_device()       # a device has been used, and no queue of the host's
        child = os.fork()
        if child == 0:
            own, opened = unimem.UnifiedBuffer(1 << 20, np.uint8), unimem.registry().open(shared)
            for one in own, opened:
                one.host[:] = 7
                one.sync_to_host()
                assert (one.host == 7).all()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (b.host == 7).all()
        """
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_buffers_travel_to_processes_by_value():
    result = run(
        """
        import multiprocessing, operator, numpy as np, unimem
        if __name__ == "__main__":
            b = unimem.UnifiedBuffer((3, 4), np.int32, device="sim", name="sent")
            b.host[...] = np.arange(12).reshape(3, 4)
            b.sync_to_device()
            import pickle
            c = pickle.loads(pickle.dumps(b))
            assert c.name == "sent" and (c.host == b.host).all() and not np.shares_memory(c.host, b.host)
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    name = pool.apply(repr, (b,))
                    assert "UnifiedBuffer(shape=(3, 4), dtype=int32" in name, name
                    there_and_back = pool.apply(operator.methodcaller("clone"), (b,))
                    assert (there_and_back.host == np.arange(12).reshape(3, 4)).all() and there_and_back.name == "sent"
                    assert pool.apply(operator.methodcaller("to_numpy"), (b,)).sum() == 66
                    summed = pool.apply(operator.attrgetter("state.name"), (b,))
                    assert summed == "HOST_DIRTY", summed  # data by value, and no device handle
        """
    )
    assert (result.returncode, result.stderr) == (0, "")


HAS_CHILDREN = """
    import os, subprocess, sys, unimem
    child = "import unimem; unimem.UnifiedBuffer(250, device='sim').fill(1).to_numpy()"
    first = unimem.UnifiedBuffer(500, device="sim").fill(1)
    children = [subprocess.Popen([sys.executable, "-c", child]) for _ in range(2)]
    assert [one.wait() for one in children] == [0, 0]
    last = unimem.UnifiedBuffer(750, device="sim").fill(1)
    print(os.getpid())
    """


def sizes_in(log):
    """Of what was asked for, by a log all of which is read."""
    lines = [line.split(",") for line in log.read_text().splitlines()]
    action, size = lines[0].index("Action"), lines[0].index("Size")
    return {int(line[size]) for line in lines[1:] if line[action] == "allocate"}


def test_children_leave_files_to_their_parent(tmp_path):
    log, report = tmp_path / "log.csv", tmp_path / "report.json"
    result = run(HAS_CHILDREN, UNIMEM_LOG=str(log), UNIMEM_REPORT=str(report))
    assert result.returncode == 0, result.stderr
    assert {2000, 3000} <= sizes_in(log) and 1000 not in sizes_in(log)
    assert json.loads(report.read_text())["statistics"]["total_allocations"] > 0
    process = result.stdout.strip()
    for name, path in (("UNIMEM_LOG", log), ("UNIMEM_REPORT", report)):
        assert result.stderr.count(f"{name}: {path}: process {process} writes it") == 2, result.stderr
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_numbers_give_each_process_its_files(tmp_path):
    result = run(HAS_CHILDREN, UNIMEM_LOG=str(tmp_path / "%p.csv"), UNIMEM_REPORT=str(tmp_path / "%p.json"))
    assert (result.returncode, result.stderr) == (0, "")
    assert 2000 in sizes_in(tmp_path / f"{result.stdout.strip()}.csv")
    assert sorted(1000 in sizes_in(log) for log in tmp_path.glob("*.csv")) == [False, True, True]
    assert len([json.loads(report.read_text()) for report in tmp_path.glob("*.json")]) == 3


def test_subinterpreters_are_refused():
    """In either order: NumPy is the one's that imports it first."""
    within = textwrap.dedent(
        """
        try:
            import unimem
        except ImportError as error:
            assert "main interpreter" in str(error.__cause__), error.__cause__
        else:
            raise AssertionError("imported")
        """
    )
    for first in (True, False):
        result = run(
            f"""
            try:
                import _interpreters as interpreters
            except ImportError:
                import _xxsubinterpreters as interpreters
            if {first}:
                import unimem
            other = interpreters.create()
            failed = interpreters.run_string(other, {within!r})
            assert failed is None, failed
            interpreters.destroy(other)
            import unimem
            assert unimem.UnifiedBuffer(3, device="sim").fill(2).to_numpy().tolist() == [2, 2, 2]
            """
        )
        assert (result.returncode, result.stderr) == (0, "")
