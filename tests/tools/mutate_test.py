#!/usr/bin/python3
"""tools/mutate.py plants each fault where it is to be, and refuses what would plant none."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "mutate.py"

SOURCE = """#include <cstdio>
int half(int x) {
  int result = x / 2;  // rounds to zero
  if (x < 0) result = -result;
  while (result > 100) {
    --result;
  }
  if (result == 7) {
    result = 8;
  }
  return result;
}
"""

MUTANTS = """# What half gets wrong.
doubled: doubles
  half.cpp
  - int result = x / 2;
  + int result = x * 2;
tripled: triples
  half.cpp
  - int result = x / 2;
  + int result = x * 3;
sign_kept: leaves the sign as it is
  half.cpp
  - if (x < 0) result = -result;
  +
sign_always: changes every sign
  half.cpp
  - if (x < 0) result = -result;
  + if (true) result = -result;
eight: takes nine for seven
  half.cpp
  - if (result == 7) {
  + if (result == 9) {
nothing: gives zero
  half.cpp
  - return result;
  + return 0;
"""

MAIN = """#include "mutants.hpp"
#include <cstdio>
demo::Mutant demo::active_mutant = demo::Mutant::none;
int half(int);
int main() {
  std::printf("none: %d %d %d %d\\n", half(20), half(-20), half(14), half(18));
  for (auto const& one : demo::all_mutants) {
    demo::active_mutant = one.mutant;
    std::printf("%s: %d %d %d %d\\n", one.name, half(20), half(-20), half(14), half(18));
  }
}
"""


class Mutate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        (self.root / "src").mkdir()
        (self.root / "src/half.cpp").write_text(SOURCE, encoding="utf-8")

    def mutate(self, mutants: str) -> "subprocess.CompletedProcess[str]":
        (self.root / "mutants.txt").write_text(mutants, encoding="utf-8")
        return subprocess.run([sys.executable, TOOL, "mutants.txt", "src", "out", "demo"], cwd=self.root, capture_output=True, text=True,
                              timeout=20)

    def test_each_fault_does_what_it_says_and_without_one_nothing_is_changed(self):
        self.assertEqual(self.mutate(MUTANTS).returncode, 0)
        (self.root / "out/main.cpp").write_text(MAIN, encoding="utf-8")
        subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", "-o", "demo", "out/main.cpp", "out/half.cpp"], cwd=self.root, check=True, timeout=60)
        said = subprocess.run([self.root / "demo"], capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
        self.assertEqual(said, ["none: 10 10 8 9", "doubled: 40 40 28 36", "tripled: 60 60 42 54", "sign_kept: 10 -10 8 9",
                                "sign_always: -10 10 -7 -9", "eight: 10 10 7 8", "nothing: 0 0 0 0"])

    def test_a_compiler_names_the_source_and_not_its_copy(self):
        self.assertEqual(self.mutate(MUTANTS.replace("x * 2", "y * 2")).returncode, 0)
        said = subprocess.run(["g++", "-fsyntax-only", "out/half.cpp"], cwd=self.root, capture_output=True, text=True, timeout=60).stderr
        self.assertIn("src/half.cpp:3:", said)

    def refused(self, mutants: str) -> str:
        outcome = self.mutate(mutants)
        self.assertNotEqual(outcome.returncode, 0)
        return outcome.stderr.strip()

    def test_a_line_that_is_gone_or_not_the_only_one_is_refused(self):
        self.assertEqual(self.refused(MUTANTS.replace("- return result;", "- return results;")),
                         "nothing: 0 lines of src/half.cpp are 'return results;', and not one")
        (self.root / "src/half.cpp").write_text(SOURCE * 2, encoding="utf-8")
        self.assertIn("2 lines of src/half.cpp", self.refused(MUTANTS))

    def test_the_line_before_tells_two_apart(self):
        (self.root / "src/half.cpp").write_text(SOURCE.replace("    --result;", "    --result;\n    --result;"), encoding="utf-8")
        once = "slow: counts once\n  half.cpp\n  = while (result > 100) {\n  - --result;\n  +\n"
        self.assertIn("2 lines", self.refused(once.replace("  = while (result > 100) {\n", "")))
        self.assertEqual(self.mutate(once).returncode, 0)
        written = (self.root / "out/half.cpp").read_text(encoding="utf-8")
        self.assertEqual(written.count("Mutant::slow"), 1)

    def test_what_is_no_statement_of_its_own_is_refused(self):
        self.assertIn("not a whole statement", self.refused("loop: never ends\n  half.cpp\n  - while (result > 100) {\n  + while (true) {\n"))

    def test_a_fault_that_changes_nothing_is_refused(self):
        self.assertEqual(self.refused("idle: does nothing\n"), "idle changes nothing")
        self.assertIn("line 2", self.refused("idle: does nothing\n  somewhere else\n"))
        self.assertEqual(self.refused(MUTANTS.replace("half.cpp", "third.cpp")), "src has no source third.cpp")


if __name__ == "__main__":
    unittest.main()
