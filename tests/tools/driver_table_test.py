#!/usr/bin/python3
"""tools/driver_table.py: the table is what the suites said, and a skipped driver, suite or test without a reason fails."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import driver_table  # noqa: E402

KNOWN = {"driver": "3.1", "version": "OpenCL 3.0", "doubles": "yes", "atomics64": "no", "shared_memory": "yes", "images": "no",
         "command_buffers": "no", "alignment": "128"}


def case(name: str, inside: str = "", status: str = "run") -> str:
    result = "skipped" if "<skipped" in inside else "completed"
    return f'<testcase classname="S" name="{name}" status="{status}" result="{result}">{inside}</testcase>'


def skipped(reason: str) -> str:
    return f'<skipped message="file.cpp:7&#x0A;{reason}&#x0A;"/>'


def recorded(**changed: str) -> str:
    values = {**KNOWN, **changed}
    return case("R", "<properties>" + "".join(f'<property name="{k}" value="{v}"/>' for k, v in values.items()) + "</properties>")


class TestDriverTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        (self.build / "test_reports").mkdir()
        self.document = self.build / "drivers.md"
        self.document.write_text(f"before\n{driver_table.BEGIN}\n{driver_table.END}\nbehind\n", encoding="utf-8")
        self.conform("driver|pocl||", "driver|oclgrind||", "program|device_opencl_test|*.c|too slow")
        self.report("pocl", recorded(), case("a"))
        self.report("oclgrind", recorded(shared_memory="no"), case("a"))

    def conform(self, *lines: str):
        (self.build / "opencl_conformance.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def report(self, driver: str, *cases: str):
        path = self.build / "test_reports" / f"device_opencl_test_{driver}.xml"
        path.write_text("<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>", encoding="utf-8")

    def run_tool(self, *arguments: str) -> "tuple[int, str]":
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = driver_table.main([*arguments, "--document", str(self.document), str(self.build)])
        return code, errors.getvalue()

    def test_what_was_written_is_what_the_tests_say(self):
        self.assertEqual(self.run_tool()[0], 1, "there is no table yet")
        self.assertEqual(self.run_tool("--write"), (0, ""))
        self.assertEqual(self.run_tool(), (0, ""))
        text = self.document.read_text(encoding="utf-8")
        self.assertIn("| PoCL, on the host's CPU | 3.1 | OpenCL 3.0 | yes | no | yes | no | no | 128 | passes |", text)
        self.assertTrue(text.startswith("before\n") and text.endswith("\nbehind\n"), text)

    def test_a_driver_that_says_otherwise_is_out_of_date(self):
        self.run_tool("--write")
        self.report("pocl", recorded(doubles="no"), case("a"))
        code, errors = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("--write", errors)

    def test_gaps_tell_their_reasons(self):
        self.report("pocl", recorded(), case("a"), case("b"), case("c"), case("d/Shared"), case("e", skipped("not here")))
        self.report("oclgrind", recorded(shared_memory="no"), case("a"), case("b", skipped("no doubles")))
        self.assertEqual(self.run_tool("--write"), (0, ""))
        text = self.document.read_text(encoding="utf-8")
        for reason in ("no doubles", "too slow", "no memory shared with the host"):
            self.assertIn(f"- Oclgrind, device: {reason}\n", text)
        self.assertNotIn("not here", text, "what no driver runs is no gap of this one")

    def test_a_test_without_a_reason_fails(self):
        # What a filter leaves out of one driver is no reason on another, nor for anything else.
        self.report("pocl", recorded(), case("a"))
        self.report("oclgrind", recorded(shared_memory="no"), case("a"), case("c"))
        self.assertIn("S.c is skipped without a reason", self.run_tool("--write")[1])
        self.report("pocl", recorded(), case("a"), case("b"))
        for missing in (case("b", skipped("")), ""):
            self.report("oclgrind", recorded(shared_memory="no"), case("a"), missing)
            code, errors = self.run_tool("--write")
            self.assertEqual(code, 1)
            self.assertIn("S.b is skipped without a reason", errors)

    def test_a_suite_that_has_not_run_fails(self):
        (self.build / "test_reports" / "device_opencl_test_oclgrind.xml").unlink()
        self.assertIn("has left no report", self.run_tool("--write")[1])
        self.report("oclgrind", case("a", skipped("no OpenCL device")))
        self.assertIn("no test has run", self.run_tool("--write")[1])
        self.report("oclgrind", recorded(), case("a", '<failure message="no"/>'))
        self.assertIn("S.a failed", self.run_tool("--write")[1])

    def test_a_missing_driver_needs_a_reason(self):
        self.run_tool("--write")
        self.conform("driver|pocl||", "driver|oclgrind||not found", "program|device_opencl_test||")
        self.assertIn("missing without a reason", self.run_tool()[1])
        self.conform("driver|pocl||", "driver|oclgrind||no package for this processor", "program|device_opencl_test||")
        self.assertEqual(self.run_tool(), (0, ""))
        self.assertEqual(self.run_tool("--write")[0], 1, "a table without it would look whole")


if __name__ == "__main__":
    unittest.main()
