"""That tests/features.md says what is there: each row that is to hold in Python has its test, and what the table names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
IN_PYTHON = (TESTS.parents[1] / "tests" / "features.md").read_text(encoding="utf-8").split("## In Python")[1].split("\n## ")[0]


def test_each_row_has_a_test_of_its_own():
    text = "".join((TESTS / name).read_text(encoding="utf-8") for name in ("test_rows_coherence.py", "test_rows_contents.py", "test_rows_shared.py"))
    rows = {int(number) for number in re.findall(r"^def test_row_(\d+)_", text, re.MULTILINE)}
    assert rows == {*range(1, 31), *range(41, 47), 52, 76, 77, 78}


def test_what_the_table_names_exists():
    named = set(re.findall(r"`(test_\w+\.py)", IN_PYTHON))
    assert len(named) > 10 and all((TESTS / one).is_file() for one in named)
    everything = "".join(one.read_text(encoding="utf-8") for one in TESTS.glob("test_*.py"))
    functions = [one for one in re.findall(r"(?:::|`)(test_\w+)`", IN_PYTHON) if one != "test_row_"]
    assert functions and all(f"def {one}(" in everything for one in functions)
    assert {one.name for one in TESTS.glob("test_*.py")} - named <= {"test_features.py", "test_orchestrator.py"}
