#!/usr/bin/python3
"""Adds up what the test runs of several build folders say, and prints one closing line.

    tools/test_summary.py [--failed-steps N] [--python REPORT [--python-failed]] BUILD...

Each BUILD was tested with `ctest --output-junit test_results.xml`. A test program that is one CTest leaves a report of its
cases in test_reports/: its cases are counted instead of the program. A program that crashed leaves none, and counts as
one failure. REPORT is what pytest left (--junit-xml); one that is missing counts as a failure, and so does a pytest that
failed (--python-failed) after its last case did well. Steps that are no tests (format, includes, lint, builds) and failed are
counted as failures.

Exit 1 if anything failed, or if a build folder has no results at all.
"""

import argparse
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Count") -> "Count":  # type: ignore[override]
        return Count(*(a + b for a, b in zip(self, other)))

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def cases_of(report: Path) -> "Count | None":
    """The cases of one report of GoogleTest or pytest; None if there is no complete one."""
    try:
        root = xml.parse(report).getroot()
    except (OSError, xml.ParseError):
        return None
    count = Count()
    for case in root.iter("testcase"):
        if case.get("status") == "notrun":  # Disabled, or filtered out: not part of this run.
            continue
        if case.find("failure") is not None:
            count += Count(failed=1)
        elif case.find("error") is not None:  # pytest's, of what is around a test
            count += Count(failed=1)
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            count += Count(skipped=1)
        else:
            count += Count(passed=1)
    return count


def count_build(build: Path) -> "tuple[Count, list[str]]":
    """What happened in one build folder, and the names of what failed. Raises OSError or ParseError without results."""
    count = Count()
    failures: "list[str]" = []
    for test in xml.parse(build / "test_results.xml").getroot().iter("testcase"):
        name = test.get("name", "?")
        status = test.get("status")
        cases = cases_of(build / "test_reports" / f"{name}.xml")
        if status == "run" and cases is not None:
            count += cases
        elif status == "run":
            count += Count(passed=1)
        elif status in ("notrun", "disabled"):
            count += Count(skipped=1)
        else:
            # A program may fail after its last case did well (a leak, a sanitizer's report): that is a failure of its own.
            if cases is not None:
                count += cases
            if cases is None or cases.failed == 0:
                count += Count(failed=1)
            failures.append(name)
    return count, failures


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failed-steps", type=int, default=0)
    parser.add_argument("--python", type=Path, metavar="REPORT")
    parser.add_argument("--python-failed", action="store_true")
    parser.add_argument("builds", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    total = Count(failed=options.failed_steps)
    for build in options.builds:
        try:
            count, failures = count_build(build)
        except (OSError, xml.ParseError) as error:
            count, failures = Count(failed=1), [f"no results: {error}"]
        print(f"{build.name}: {count}")
        for failure in failures:
            print(f"  failed: {failure}")
        total += count
    if options.python is not None:
        cases = cases_of(options.python)
        if cases is None or not any(cases):
            cases = Count(failed=1)
            print(f"python: no results in {options.python}")
        elif options.python_failed and cases.failed == 0:
            cases += Count(failed=1)
            print("python: pytest itself failed")
        print(f"python: {cases}")
        total += cases
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
