"""`unimem.mpi` in two processes, by both implementations of MPI (mpi_messages_program.py, mpi_events_program.py, mpi_ends_program.py); and without mpi4py."""

import subprocess
import sys

import pytest
from mpi_ranks import IMPLEMENTATIONS, run, why_not

PROGRAMS = {
    "mpi_messages_program.py": [
        "every_type", "nothing_in_it", "no_rank", "what_moves", "sizes_that_do_not_fit", "bad_arguments", "each_kind_of_buffer", "freed",
    ],
    "mpi_events_program.py": [
        "in_order_with_kernels", "both_ways_at_once", "messages_keep_their_order", "failed_kernels", "awaited", "interrupted", "many_messages", "many_threads",
        "refused_while_a_kernel_runs", "freed_communicators",
    ],
    "mpi_ends_program.py": ["failures_of_mpi", "collectives", "collectives_that_disagree"],
}  # fmt: skip
ENDS = ["without_threads", "not_initialized", "finalized_under_way", "arrays_after_finalize", "left_under_way", "left_behind_a_kernel", "left_by_an_exception"]


def check(implementation, ranks, program, *parts):
    missing = why_not(implementation)
    if missing:
        pytest.skip(missing)
    done = run(implementation, ranks, program, *parts, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, list(parts)), done.stdout + done.stderr


@pytest.mark.check
@pytest.mark.timeout(150)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_ranks(implementation, program):
    check(implementation, 2, program, *PROGRAMS[program])


@pytest.mark.check
@pytest.mark.timeout(150)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("part", ENDS)
def test_beginnings_and_ends(implementation, part):
    check(implementation, 2, "mpi_ends_program.py", part)


def test_without_mpi4py_the_first_call_says_so():
    program = """
import sys
sys.modules["mpi4py"] = None
import unimem
from unimem import mpi
buffer = unimem.UnifiedBuffer(3)
for call in (lambda: mpi.send(unimem.read(buffer), 0), lambda: mpi.broadcast(unimem.readwrite(buffer), 0), lambda: mpi.DistributedArray(3)):
    try:
        call()
    except unimem.UnsupportedOperation as error:
        assert "mpi4py" in str(error) and error.where == "this Python", error
    else:
        raise AssertionError("it was not noticed")
print("said so")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "said so\n"), done.stderr


def test_importing_it_starts_no_mpi():
    program = "import sys, unimem.mpi; assert not [one for one in sys.modules if one.startswith('mpi4py')]"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
