#!/usr/bin/python3
"""tools/gpu_suite.py accounts for every test of a program, whether it ends, crashes or hangs."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import gpu  # noqa: E402
import gpu_suite  # noqa: E402

# A program in the manner of GoogleTest: what each of its tests does stands beside its name.
PROGRAM = """#!/usr/bin/python3
import os, sys, time
left_out = next((a[len("--gtest_filter=*-"):].split(":") for a in sys.argv if a.startswith("--gtest_filter=*-")), [])
status = 0
for test in {tests!r}:
    name, does = test.split("=")
    if name in left_out:
        continue
    print(f"[ RUN      ] {{name}}", flush=True)
    if does == "crash":
        os.abort()
    if does == "hang":
        time.sleep(60)
    if does == "skip":
        print("x.cpp:1: Skipped\\nit scripts the stand-in driver\\n")
    if does == "fail":
        print("x.cpp:2: Failure\\nExpected: 1")
    word = {{"ok": "      OK", "fail": " FAILED ", "skip": " SKIPPED"}}[does]
    print(f"[{{word.ljust(9)}}] {{name}}, where GetParam() = 4-byte object (1 ms)" if does == "fail"
          else f"[{{word.rjust(9)}} ] {{name}} (12 ms)", flush=True)
    status |= does == "fail"
sys.exit(status if not {exit_code} else {exit_code})
"""


class GpuSuite(unittest.TestCase):
    def outcome(self, *tests: str, exit_code: int = 0, seconds: float = 30) -> gpu_suite.Outcome:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "tests" / "device" / "suite"
            program.parent.mkdir(parents=True)
            program.write_text(PROGRAM.format(tests=list(tests), exit_code=exit_code), encoding="utf-8")
            program.chmod(0o755)
            with contextlib.redirect_stdout(io.StringIO()):
                return gpu_suite.run_suite(Path(folder), "suite", seconds)

    def test_every_test_is_counted_and_a_reason_told_for_those_left_out(self):
        outcome = self.outcome("A.one=ok", "A.two/0=ok", "B.three=skip")
        self.assertEqual(outcome.passed, ["A.one", "A.two/0"])
        self.assertEqual(outcome.skipped, {"B.three": "it scripts the stand-in driver"})
        self.assertTrue(outcome.green)

    def test_a_failed_test_is_not_green(self):
        outcome = self.outcome("A.one=ok", "A.two=fail")
        self.assertEqual((outcome.passed, outcome.failed, outcome.problems), (["A.one"], ["A.two"], []))
        self.assertFalse(outcome.green)

    def test_a_crash_is_that_tests_failure_and_the_others_have_their_turn(self):
        outcome = self.outcome("A.one=ok", "A.two=crash", "A.three=ok")
        self.assertEqual((outcome.passed, outcome.failed), (["A.one", "A.three"], ["A.two"]))
        self.assertIn("crashed", outcome.problems[0])

    def test_a_hang_is_that_tests_failure_and_the_others_have_their_turn(self):
        silence, gpu_suite.SILENCE_SECONDS = gpu_suite.SILENCE_SECONDS, 1.5
        try:
            outcome = self.outcome("A.one=ok", "A.two=hang", "A.three=ok")
        finally:
            gpu_suite.SILENCE_SECONDS = silence
        self.assertEqual((outcome.passed, outcome.failed), (["A.one", "A.three"], ["A.two"]))
        self.assertIn("hung", outcome.problems[0])

    def test_time_that_is_up_ends_it_and_is_not_green(self):
        outcome = self.outcome("A.one=ok", "A.two=hang", "A.three=ok", seconds=1.5)
        self.assertEqual((outcome.passed, outcome.failed), (["A.one"], ["A.two"]))
        self.assertFalse(outcome.green)

    def test_a_program_that_fails_after_its_tests_is_not_green(self):
        outcome = self.outcome("A.one=ok", exit_code=86)
        self.assertIn("86", outcome.problems[0])
        self.assertFalse(outcome.green)

    def test_nothing_that_ran_is_not_green(self):
        self.assertFalse(self.outcome("A.one=skip").green)
        with tempfile.TemporaryDirectory() as folder:
            self.assertFalse(gpu_suite.run_suite(Path(folder), "absent", 5).green)

    def test_what_the_sanitizer_looks_at_is_among_the_suites_of_the_build(self):
        if len(SUITES) == 0:
            self.skipTest("the build's list was not named")
        for _, program, _, _ in gpu.SANITIZED:
            self.assertIn(program, SUITES)


    def test_steps_come_in_the_order_that_tells_most_soonest(self):
        marks = ["ListingMakesNoContext", "/plain", "DeviceConformance*-", "*-*Stray*", "StandsWaiting", "Capture",
                 "DefaultStream", "StayInOrder", "WriteCombined", "SixtyThousand", "Stray*", "GrowToMost"]
        places = []
        for mark in marks:
            begin = places[-1] + 1 if places else 0
            places.append(next(i for i, step in enumerate(gpu.STEPS) if i >= begin and mark in step.tests))
        self.assertEqual(places, sorted(places))
        by_test = {step.tests: step for step in gpu.STEPS}
        self.assertEqual(by_test["*StreamsStayInOrderWhile*"].environment, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        self.assertEqual(by_test["*WriteCombinedMemory*"].tool, "memcheck")
        self.assertEqual(gpu.PARTS[0], "steps")
        self.assertLessEqual(gpu.STEP_SECONDS, 60)
        for step in gpu.STEPS:
            self.assertTrue(not SUITES or step.program in SUITES, step)
            negative = step.tests.partition("-")[2]
            others = [other.tests for other in gpu.STEPS if other.program == step.program]
            self.assertTrue(not negative or negative in others, f"{negative} is another step, or nobody runs it")

    def test_the_rest_leaves_out_what_a_step_has_run(self):
        self.assertEqual(gpu.left_of("buffer_cuda_test", True), "*")
        self.assertEqual(gpu.left_of("device_cuda_test", False), "*")
        self.assertEqual(gpu.left_of("pool_cuda_test", True), "")
        self.assertEqual(gpu.left_of(gpu.OF_STEPS, True), "")
        left = gpu.left_of("device_cuda_test", True)
        self.assertIn("*DeviceConformance*", left)
        self.assertNotIn("WriteCombined", left, "a tool may be missing")

    def test_a_step_tells_what_its_tests_say_and_runs_in_its_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "tests" / "device" / "suite"
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\necho '[ RUN      ] A.one'\necho \"step: queues $UNIMEM_STEP of $1\"\n"
                               "echo '[       OK ] A.one (1 ms)'\n", encoding="utf-8")
            program.chmod(0o755)
            build, gpu.BUILD = gpu.BUILD, Path(folder)
            try:
                step = gpu.Step("a step", "suite", "*one*", environment={"UNIMEM_STEP": "1"})
                row = gpu.step_row(step, gpu.time.monotonic() + 30, [], [])
            finally:
                gpu.BUILD = build
        self.assertEqual((row.what, row.verdict), ("a step", "ok"))
        self.assertIn("1 passed, 0 failed, 0 not run; queues 1 of --gtest_filter=*one*", row.result)
        self.assertNotIn("UNIMEM_STEP", gpu.os.environ)


SUITES = Path(sys.argv.pop(1)).read_text(encoding="utf-8").split() if len(sys.argv) > 1 else []

if __name__ == "__main__":
    unittest.main()
