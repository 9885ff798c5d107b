"""Arrays over the ranks of MPI (mpi_array_program.py), by both implementations."""

import pytest
from mpi_ranks import IMPLEMENTATIONS, run, why_not

pytestmark = [pytest.mark.check, pytest.mark.timeout(150)]

PARTS = [
    "blocks_cover_everything", "ranges_are_sets", "at_random", "only_what_has_changed_moves", "others_read_what_was", "stencil", "reductions", "what_is_refused",
    "two_communicators", "never_closed",
]  # fmt: skip


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_arrays(implementation, ranks):
    missing = why_not(implementation)
    if missing:
        pytest.skip(missing)
    done = run(implementation, ranks, "mpi_array_program.py", *PARTS, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, PARTS), done.stdout + done.stderr
