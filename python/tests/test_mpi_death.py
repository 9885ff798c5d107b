"""A rank of MPI that is killed (mpi_death_program.py). The launchers of both implementations end the others, unless Open MPI's is told not to."""

import pytest
from mpi_ranks import IMPLEMENTATIONS, run, why_not

pytestmark = [pytest.mark.check, pytest.mark.timeout(100)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_launcher_ends_the_others(implementation):
    missing = why_not(implementation)
    if missing:
        pytest.skip(missing)
    done = run(implementation, 3, "mpi_death_program.py", "waiting", timeout=60)
    assert done.returncode != 0 and "9" in done.stdout + done.stderr, done


def test_survivors_keep_their_data_and_go_on():
    missing = why_not("openmpi")
    if missing:
        pytest.skip(missing)
    done = run("openmpi", 3, "mpi_death_program.py", "survivors", timeout=60, OMPI_MCA_orte_enable_recovery="1")
    assert done.stdout.split() == ["kept", "kept"], done.stdout + done.stderr
