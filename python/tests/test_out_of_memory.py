"""Every allocation of every operation fails in its turn, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unimem

pytestmark = pytest.mark.check

PRELOADED = Path(unimem.__file__).parents[2] / "tests" / "core" / "libfailing_new.so"


@pytest.mark.parametrize("where", [[], ["all"]], ids=["in the calling thread", "in all threads"])
@pytest.mark.parametrize("device", ["cpu", "sim:memory=2MiB"])
def test_no_failed_allocation_loses_data(device, where):
    if not PRELOADED.is_file():
        pytest.skip(f"{PRELOADED} is built with the C++ tests")
    environment = {**os.environ, "LD_PRELOAD": str(PRELOADED), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", Path(__file__).with_name("out_of_memory.py"), device, *where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()}
    assert failed["launch"] > 20 and failed["wrap"] > 5, "allocations that were made to fail"
