"""The programs of examples/python print what is expected. Each needs packages of others, which `./dev check` fetches (tools/formats-wheels.txt,
tools/interop-wheels.txt)."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted((EXAMPLES / "python").glob("*.py"))


def test_there_are_examples():
    assert len(PROGRAMS) >= 6


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_prints_what_is_expected(program):
    needed = set(re.findall(r"^(?:import|from) (\w+)", program.read_text(encoding="utf-8"), re.MULTILINE))
    missing = sorted(name for name in needed if find_spec(name) is None)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: ./dev check fetches it")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=False)
    expected = (EXAMPLES / "expected" / f"{program.stem}.txt").read_text(encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
