"""mpi4py in two processes: what it receives into buffers reaches the device, and buffers are sent by pickle 5 without copies of ours (mpi_program.py)."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

found = find_spec("mpi4py")
MPIEXEC = Path(found.origin).parents[1] / "bin" / "mpiexec" if found else None
if MPIEXEC is None or not MPIEXEC.is_file():
    pytest.skip("mpi4py with MPICH is not installed: ./dev check fetches it", allow_module_level=True)


@pytest.mark.parametrize("part", ["receives", "receives_later", "collectives", "windows", "read_only_is_refused", "messages_by_pickle"])
def test_two_processes(part):
    libraries = str(MPIEXEC.parents[1] / "lib")
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", Path(__file__).with_name("mpi_program.py"), part],
        env={**os.environ, "LD_LIBRARY_PATH": libraries}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, part + "\n"), done.stderr
