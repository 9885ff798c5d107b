"""Starts a program's ranks by the two implementations of MPI: that of the wheel, which brings its own launcher, and the system's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_found = find_spec("mpi4py")
_prefix = Path(_found.origin).parents[1] if _found and _found.origin else None

MISSING = "mpi4py is not installed: ./dev check fetches it" if _prefix is None else None
IMPLEMENTATIONS = ["mpich", "openmpi"]


def why_not(implementation: str) -> str | None:
    """None where it can be run here."""
    if _prefix is None:
        return MISSING
    if implementation == "mpich":
        return None if (_prefix / "bin" / "mpiexec").is_file() else "MPICH's launcher is not installed beside mpi4py"
    launcher = shutil.which("mpirun")
    if launcher is None:
        return "Open MPI's mpirun is not installed"
    told = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return None if "Open MPI" in told else f"mpirun is not Open MPI's: {told.splitlines()[:1]}"


def launcher(implementation: str, ranks: int) -> list[str]:
    if implementation == "mpich":
        assert _prefix is not None
        return [str(_prefix / "bin" / "mpiexec"), "-n", str(ranks)]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]


def environment(implementation: str, **more: str) -> dict[str, str]:
    env = {**os.environ, **more}
    if implementation == "mpich":
        assert _prefix is not None
        env["LD_LIBRARY_PATH"] = str(_prefix / "lib")
    return env


def run(implementation: str, ranks: int, program: str, *arguments: str, timeout: int = 60, **more: str) -> subprocess.CompletedProcess[str]:
    """A program of this folder's, with what it has said. One that does not end is ended, with its ranks."""
    command = [*launcher(implementation, ranks), sys.executable, "-m", "mpi4py", str(Path(__file__).with_name(program)), *arguments]
    return subprocess.run(command, env=environment(implementation, **more), capture_output=True, text=True, timeout=timeout, check=False)
