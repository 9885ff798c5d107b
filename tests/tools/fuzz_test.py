#!/usr/bin/python3
"""tools/fuzz.py tells what programs of libFuzzer's found, and fails when one finds something or runs nothing."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import fuzz  # noqa: E402

CLEAN = "#2\tINITED\n#512\tpulse\nDone 700 runs in 20 second(s)\nstat::number_of_executed_units: 700\n"
ABORTED = "#2\tINITED\n#9\tNEW\nsize: a size is another\n==17== ERROR: libFuzzer: deadly signal\nSUMMARY: libFuzzer: deadly signal\n"
OVERFLOW = "#2\tINITED\n==17==ERROR: AddressSanitizer: heap-buffer-overflow\nSUMMARY: AddressSanitizer: heap-buffer-overflow a.cpp:3 in f\n"
UNDEFINED = "a.cpp:3:4: runtime error: signed integer overflow\n"


class Fuzz(unittest.TestCase):
    def run_programs(self, **programs: str) -> "tuple[int, str]":
        """The exit code and the table for programs that are shell scripts."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "tests/fuzz"
            place.mkdir(parents=True)
            for name, script in programs.items():
                program = place / f"fuzz_{name}"
                program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
                program.chmod(0o755)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                code = fuzz.main(["--seconds", "1", "--jobs", "1", folder, *programs])
            return code, output.getvalue()

    def test_executions_are_those_of_the_statistics_or_the_last_that_were_told(self):
        self.assertEqual(fuzz.executions_in(CLEAN), 700)
        self.assertEqual(fuzz.executions_in(ABORTED), 9)
        self.assertEqual(fuzz.executions_in(""), 0)

    def test_a_finding_is_what_the_target_or_the_sanitizer_says(self):
        self.assertEqual(fuzz.finding_in(CLEAN, 0), "")
        self.assertEqual(fuzz.finding_in(ABORTED, 77), "size: a size is another")
        self.assertEqual(fuzz.finding_in(OVERFLOW, 1), "AddressSanitizer: heap-buffer-overflow a.cpp:3 in f")
        self.assertEqual(fuzz.finding_in(UNDEFINED, 1), UNDEFINED.strip())
        self.assertEqual(fuzz.finding_in("", -9), "exit status -9")

    def test_lines_are_those_of_the_library(self):
        def one(name: str, covered: int, count: int) -> dict:
            return {"filename": str(fuzz.ROOT / name), "summary": {"lines": {"covered": covered, "count": count}}}
        told = {"data": [{"files": [one("src/core/size.cpp", 3, 4), one("tests/fuzz/size_fuzz.cpp", 9, 9), one("src/core/error.cpp", 1, 2)]}]}
        self.assertEqual(fuzz.lines_in(told), (4, 6))
        self.assertIsNone(fuzz.lines_in({"data": [{"files": []}]}))

    def test_what_finds_nothing_passes(self):
        code, table = self.run_programs(size=f"printf '{CLEAN}'")
        self.assertEqual(code, 0, table)
        self.assertRegex(table, r"size +700 +20 +none +none")

    def test_one_that_finds_something_fails_and_shows_its_log(self):
        code, table = self.run_programs(size=f"printf '{ABORTED}'; exit 77", npy=f"printf '{CLEAN}'")
        self.assertEqual(code, 1)
        self.assertRegex(table, r"size +9 +0 +none +size: a size is another\n")
        self.assertRegex(table, r"npy +700 ")
        self.assertIn("deadly signal", table)

    def test_one_that_runs_nothing_fails(self):
        self.assertEqual(self.run_programs(size="true")[0], 1)


if __name__ == "__main__":
    unittest.main()
