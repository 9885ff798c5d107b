#!/usr/bin/python3
"""tools/test_summary.py counts what ctest and GoogleTest wrote, and never loses a failure."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import test_summary  # noqa: E402


def results(**tests: str) -> str:
    cases = "".join(f'<testcase name="{name}" status="{status}"/>' for name, status in tests.items())
    return f'<testsuite name="x">{cases}</testsuite>'


def report(passed: int = 0, failed: int = 0, skipped: int = 0, filtered: int = 0) -> str:
    cases = ('<testcase name="p" status="run" result="completed"/>' * passed
             + '<testcase name="f" status="run" result="completed"><failure message="no"/></testcase>' * failed
             + '<testcase name="s" status="run" result="skipped"><skipped message="why"/></testcase>' * skipped
             + '<testcase name="n" status="notrun" result="suppressed"/>' * filtered)
    return f'<testsuites><testsuite name="y">{cases}</testsuite></testsuites>'


class TestSummary(unittest.TestCase):
    def summary(self, arguments: "tuple[str, ...]" = (), **files: str) -> "tuple[int, list[str]]":
        """The exit code and lines for one build folder holding test_results.xml (`results`) and reports by name."""
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder) / "release"
            (build / "test_reports").mkdir(parents=True)
            for name, text in files.items():
                path = build / "test_results.xml" if name == "results" else build / "test_reports" / f"{name}.xml"
                path.write_text(text, encoding="utf-8")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                code = test_summary.main([*arguments, str(build / "test_results.xml")])
            return code, output.getvalue().splitlines()

    def test_a_test_of_its_own_counts_once(self):
        self.assertEqual(self.summary(results=results(a="run", b="run", c="notrun")),
                         (0, ["release: 2 passed, 0 failed, 1 skipped", "2 passed, 0 failed, 1 skipped"]))

    def test_a_whole_program_counts_by_its_cases(self):
        code, lines = self.summary(results=results(pool_test="run", b="run"),
                                   pool_test=report(passed=10, skipped=2, filtered=5))
        self.assertEqual((code, lines[-1]), (0, "11 passed, 0 failed, 2 skipped"))

    def test_a_failed_case_fails_the_run_and_is_named(self):
        code, lines = self.summary(results=results(pool_test="fail"), pool_test=report(passed=3, failed=1))
        self.assertEqual((code, lines[-1]), (1, "3 passed, 1 failed, 0 skipped"))
        self.assertIn("  failed: pool_test", lines)

    def test_a_crash_counts_as_a_failure_though_no_report_was_left(self):
        code, lines = self.summary(results=results(pool_test="fail"))
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_a_failure_after_the_last_case_is_not_lost(self):
        code, lines = self.summary(results=results(pool_test="fail"), pool_test=report(passed=3))
        self.assertEqual((code, lines[-1]), (1, "3 passed, 1 failed, 0 skipped"))

    def test_a_failed_step_is_a_failure(self):
        code, lines = self.summary(("--failed-steps", "1"), results=results(a="run"))
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_run_without_results_is_a_failure(self):
        code, lines = self.summary()
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_a_program_that_is_not_there_is_a_failure_and_not_skipped(self):
        text = ('<testsuite><testcase name="a" status="run"/><testcase name="b" status="notrun"><skipped message="Unable to find executable"/>'
                '</testcase><testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase></testsuite>')
        code, lines = self.summary(results=text)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))
        self.assertIn("  failed: b", lines)

    def test_a_run_of_no_test_is_a_failure(self):
        code, lines = self.summary(results=results())
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_the_slowest_cases_are_named_with_their_programs(self):
        text = '<testsuite><testcase name="a" status="run" time="3.5"/><testcase name="b_test" status="run" time="9"/></testsuite>'
        report = ('<testsuites><testsuite><testcase classname="S" name="One" status="run" time="4.25"/>'
                  '<testcase classname="S" name="Two" status="run" time="0.5"/></testsuite></testsuites>')
        code, lines = self.summary(("--slowest", "2"), results=text, b_test=report)
        self.assertEqual((code, lines[:3]), (0, ["the slowest 2:", "     4.2 s  release: b_test: S.One", "     3.5 s  release: a"]))

    def test_counts_of_several_runs_add_up_and_none_may_be_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second, missing = (Path(folder) / name for name in ("first.json", "second.json", "missing.json"))
            self.summary(("--counts", str(first), "--seconds", "100"), results=results(a="run", b="notrun"))
            self.summary(("--counts", str(second), "--seconds", "20"), results=results(a="fail"))
            for files, expected in (((first,), (0, ["100 s in all", "1 passed, 0 failed, 1 skipped"])),
                                    ((first, second), (1, ["120 s in all", "1 passed, 1 failed, 1 skipped"])),
                                    ((first, missing), (1, ["100 s in all", "1 passed, 1 failed, 1 skipped"]))):
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    code = test_summary.main(["--sum", *map(str, files)])
                self.assertEqual((code, output.getvalue().splitlines()[-2:]), expected)

    def python(self, text: "str | None", *arguments: str) -> "tuple[int, list[str]]":
        """The same with a report of pytest beside a build that did well; None: it left none."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "python.xml"
            if text is not None:
                path.write_text(text, encoding="utf-8")
            return self.summary(("--python", str(path), *arguments), results=results(a="run"))

    def test_pytest_counts_by_its_cases(self):
        text = ('<testsuites><testsuite><testcase name="p"/><testcase name="q"/><testcase name="f"><failure/></testcase>'
                '<testcase name="e"><error/></testcase><testcase name="s"><skipped/></testcase></testsuite></testsuites>')
        code, lines = self.python(text)
        self.assertEqual((code, lines[-1]), (1, "3 passed, 2 failed, 1 skipped"))
        self.assertIn("python: 2 passed, 2 failed, 1 skipped", lines)

    def test_a_pytest_that_left_nothing_or_failed_afterwards_is_a_failure(self):
        well = '<testsuites><testsuite><testcase name="p"/></testsuite></testsuites>'
        self.assertEqual(self.python(well)[0], 0)
        for text, last in ((None, "1 passed, 1 failed, 0 skipped"), ("<testsuites/>", "1 passed, 1 failed, 0 skipped")):
            code, lines = self.python(text)
            self.assertEqual((code, lines[-1]), (1, last))
        code, lines = self.python(well, "--python-failed")
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
