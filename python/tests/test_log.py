"""What the library logs comes to Python's logger "unimem"."""

import logging
import os
import subprocess
import sys
import textwrap
import threading

import pytest

import unimem
from unimem import MemoryManager, UnifiedBuffer


class Heard(logging.Handler):
    """Keeps records, and says when the first has come."""

    def __init__(self):
        super().__init__()
        self.records, self.there = [], threading.Event()

    def emit(self, record):
        self.records.append(record)
        self.there.set()


@pytest.fixture
def heard():
    handler, logger = Heard(), logging.getLogger("unimem")
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def cause_an_error(manager, device):
    """A callback for pressure that raises is logged by the manager, on a thread of its own."""
    manager.set_limit(device, "1MiB")

    def callback(change):
        raise ZeroDivisionError("raised by a callback ü")

    with manager.on_pressure(callback):
        buffer = UnifiedBuffer(1_000_000, "u1", device=device, manager=manager)
        buffer.fill(1)
        buffer.sync_to_device()
        manager.settle_pressure()


def test_messages_of_library_threads_are_logged(sim, heard, capfd):
    cause_an_error(MemoryManager(), sim)
    assert heard.there.wait(60)
    record = heard.records[0]
    assert record.name == "unimem" and record.levelno in (logging.WARNING, logging.ERROR) and "raised by a callback ü" in record.getMessage()
    assert "callback" not in capfd.readouterr().err


def test_a_handler_may_use_busy_buffers(sim, heard):
    """It is called on a thread that holds no lock of the library's."""
    buffer, answers = UnifiedBuffer(1000, device=sim).fill(1), []
    heard.addFilter(lambda record: answers.append(float((buffer.device.to_numpy() + buffer.host).sum())) or True)
    cause_an_error(MemoryManager(), sim)
    assert heard.there.wait(60) and answers[0] == 2000


def test_messages_come_while_the_interpreter_is_busy_elsewhere(sim, heard):
    """A thread that logs does not wait for the interpreter's lock: not if this thread, which waits for it, kept it."""
    manager = MemoryManager()
    for _ in range(20):
        cause_an_error(manager, sim)
        manager.cleanup()
    assert heard.there.wait(60)


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )  # fmt: skip


CAUSE = """
    import logging, unimem
    def cause():
        manager = unimem.MemoryManager()
        sim = unimem.make_sim("memory=4MiB")
        manager.set_limit(sim, "1MiB")
        def callback(change): raise ZeroDivisionError("by a callback")
        with manager.on_pressure(callback):
            buffer = unimem.UnifiedBuffer(1_000_000, "u1", device=sim, manager=manager)
            buffer.fill(1); buffer.sync_to_device()
            manager.settle_pressure()
"""


def test_messages_are_told_before_the_end():
    done = run(CAUSE + "    logging.basicConfig(format='told: %(name)s %(levelname)s')\n    cause()\n")
    assert done.returncode == 0 and done.stderr.startswith("told: unimem "), done.stderr


def test_levels_of_environment_and_python_decide():
    quiet = run(CAUSE + "    logging.getLogger('unimem').setLevel(logging.CRITICAL)\n    cause()\n")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    off = run(CAUSE + "    logging.basicConfig(level=1)\n    cause()\n", UNIMEM_LOG_LEVEL="off")
    assert (off.returncode, off.stderr) == (0, "")


def test_at_the_interpreters_end_stderr_serves():
    """A leak is reported by the library's own end, when no Python is left."""
    code = """
        import ctypes, logging, unimem
        logging.basicConfig(format="told: %(message)s")
        kept = unimem.UnifiedBuffer(1000, name="kept").fill(1)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    """
    done = run(code, UNIMEM_LEAKS="1")
    assert done.returncode == 0 and "kept" in done.stderr and done.stderr.startswith("unimem: "), done.stderr


def test_a_forked_child_logs():
    done = run(
        CAUSE
        + """
    import os, warnings
    warnings.simplefilter("ignore")
    logging.basicConfig(format="told %(message)s")
    cause()
    child = os.fork()
    if child == 0:
        logging.getLogger("unimem").warning("from the child")
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    )
    assert done.returncode == 0 and done.stderr.count("told") == 2, done.stderr
