"""UNIMEM_CHECK=2 reports mistakes of Python kernels, and reads of what nothing has written, with the buffer, the bytes and the place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PREAMBLE = """
import ctypes
import numpy as np
import unimem
from unimem import Kernel, UnifiedBuffer, launch, read, readwrite, write

device = unimem.make_sim("memory=64MiB") if {device!r} == "sim" else unimem.device("cpu")
x = UnifiedBuffer(100, "f4", device=device, name="samples")
y = UnifiedBuffer(100, "f4", device=device, name="sums")
"""


@pytest.fixture(params=["cpu", "sim"])
def said(request):
    """What a program says on stderr, having ended well."""

    def run(code: str) -> str:
        program = PREAMBLE.format(device=request.param) + code
        environment = {**os.environ, "UNIMEM_CHECK": "2"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def test_another_level_is_refused_with_those_there_are():
    code = "import unimem\ntry:\n    unimem.UnifiedBuffer(4, 'f4', device='cpu').fill(1)\nexcept unimem.InvalidArgument as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "UNIMEM_CHECK": "3"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("UNIMEM_CHECK", "3", "0, 1 or 2"):
        assert word in done.stdout


def tells(text: str, *words: str) -> None:
    for word in words:
        assert word in text, text
    assert "<module>() at <string>" in text, text


def test_reports_a_write_that_fills_half(said):
    text = said("""
def half(x):
    x[:50] = 1
launch(Kernel("half").host(half), 1, write(x)).wait()
""")
    tells(text, "kernel 'half'", "buffer 'samples'", "[200, 400)", "not all of them were written", "launched from")


def test_reports_the_half_when_it_is_read(said):
    text = said("""
def half(x):
    x[:50] = 1
def copies(x, y):
    y[:] = x
launch(Kernel("half").host(half), 1, write(x))
launch(Kernel("copies").host(copies), 1, read(x), write(y)).wait()
""")
    tells(text, "bytes [200, 400) are read by work on", "nothing has written them")


def test_reports_a_write_through_a_read_operand(said):
    text = said("""
x.fill(5)
def cast(x):
    ctypes.memset(x.ctypes.data + 12, 7, 8)
launch(Kernel("cast").host(cast), 1, read(x)).wait()
assert (x.to_numpy() == 5).all()
""")
    tells(text, "kernel 'cast'", "buffer 'samples'", "[12, 20)", "passed as read")


def test_reports_operands_that_overlap_in_part(said):
    text = said("""
x.fill(5)
def moves(a, b):
    b[:] = a + 1
launch(Kernel("moves").host(moves), 1, read(x, 0, 50), readwrite(x, 25, 50)).wait()
assert (x.to_numpy()[25:75] == 6).all() and (x.to_numpy()[:25] == 5).all()
""")
    tells(text, "kernel 'moves'", "buffer 'samples'", "[100, 200)", "overlap in part")


def test_reports_reads_of_what_nothing_has_written(said):
    for way in ("x.to_numpy()", "launch(Kernel('k').host(lambda a: None), 1, read(x)).wait()", "x.map(unimem.MapMode.READ)"):
        tells(said(way), "buffer 'samples': bytes [0, 400) are read", "nothing has written them", "read from")
    tells(said("x.copy_from(np.ones(40, 'f4'), offset=10)\nx.to_numpy()"), "bytes [0, 40), [200, 400) are read")


def test_reports_a_look_at_a_stale_array(said):
    text = said("""
sim = unimem.make_sim("memory=64MiB")
z = UnifiedBuffer(100_000, "f4", device=sim, name="kept")
z.fill(5)
array = z.host
launch(Kernel("adds").host(lambda a: np.add(a, 1, out=a)), 1, readwrite(z)).wait()
assert float(array[3]) == 5  # what it is without the check
assert float(array.sum()) == 500_000
assert (z.to_numpy() == 6).all() and float(array[3]) == 6
""")
    tells(text, "buffer 'kept': byte 12, of bytes [0, 400000) that a device has newer values of", "accessed from")
    assert text.count("newer values") == 1


def test_an_array_that_is_kept_keeps_its_copy(said):
    text = said("""
x.fill(5)
kept = []
event = launch(Kernel("keeps").host(lambda a: kept.append(a)), 1, read(x))
try:
    event.wait()
except unimem.KernelError as error:
    assert "kept argument 1" in str(error), error
else:
    raise AssertionError("no error")
x.fill(6)
assert (kept[0] == 5).all()
""")
    assert text == ""


def test_is_silent_for_correct_launches(said):
    text = said("""
x.host[:] = 3
def twice(a, b):
    b[:] = a + a
twice = Kernel("twice").host(twice)
launch(twice, 1, read(x), write(y)).wait()
launch(twice, 1, read(y), write(y)).wait()  # in place
launch(twice, 1, read(y, 0, 7), readwrite(x, 3, 7)).wait()
launch(Kernel("adds").host(lambda a, s: np.add(a, s, out=a)), 1, readwrite(x), 1.0).wait()
assert (y.to_numpy() == 12).all()
assert x.to_numpy()[3] == 25 and x.to_numpy()[99] == 4
z = UnifiedBuffer(100, "f4", device=device, name="more")
with z.map(unimem.MapMode.DISCARD) as array:
    array[:] = 1
assert (z.host == 1).all() and (z.to_numpy() == 1).all()
""")
    assert text == ""
