"""That documents show what is there: the tutorial's code is the examples', and the tests that tests/features.md names exist."""

import fnmatch
import re
import unittest
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]


def stripped(text: str) -> str:
    """The lines without indentation and empty ones, so that a part of a function can be shown by itself."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def blocks(page: str, language: str) -> "list[str]":
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def tests_of_the_tree() -> "set[str]":
    """"Suite.Name" of every test in tests/, parameterized ones by their pattern's name alone."""
    names = set()
    for path in (ROOT / "tests").rglob("*.[ch]pp"):
        text = path.read_text(encoding="utf-8")
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"\bTYPED_TEST(?:_P)?\(\s*(\w+),\s*(\w+)\)", text)}
    return names


class Documents(unittest.TestCase):
    def test_the_tutorials_code_is_the_examples(self):
        examples = [stripped(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "examples").glob("*.cpp"))]
        shown = blocks("docs/tutorial.md", "cpp")
        self.assertGreater(len(shown), 10)
        for block in shown:
            self.assertTrue(any(stripped(block) in example for example in examples), f"in no example:\n{dedent(block)}")

    def test_the_tutorials_output_is_the_examples(self):
        expected = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples/expected").glob("*.txt"))]
        shown = blocks("docs/tutorial.md", "text")
        self.assertGreater(len(shown), 0)
        for block in shown:
            self.assertTrue(any(block in one for one in expected), f"printed by no example:\n{block}")

    def test_the_tests_that_the_features_name_exist(self):
        there = tests_of_the_tree()
        named = re.findall(r"`(?:\w+/\*?)?([A-Z]\w*\*?\.(?:[A-Z]\w*\*?|\*))`", (ROOT / "tests/features.md").read_text(encoding="utf-8"))
        self.assertGreater(len(named), 200)
        missing = [name for name in named if not any(fnmatch.fnmatchcase(one, name) for one in there)]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
