#!/usr/bin/python3
"""Adds up what the test runs of several build folders say, and prints one closing line.

    tools/test_summary.py [--failed-steps N] [--python REPORT [--python-failed]] [--slowest N] [--counts FILE [--seconds S]] RESULTS...
    tools/test_summary.py --sum FILE...

Each RESULTS is what `ctest --output-junit` left in a build folder. A test program that is one CTest leaves a report of its
cases in test_reports/ beside it: its cases are counted instead of the program. A program that crashed leaves none, and counts as
one failure. REPORT is what pytest left (--junit-xml); one that is missing counts as a failure, and so does a pytest that
failed (--python-failed) after its last case did well. Steps that are no tests (format, includes, lint, builds) and failed are
counted as failures. The slowest cases are printed if asked for; the counts and the seconds go into FILE as JSON, and `--sum` adds several
up: a FILE that is missing is a failure.

Exit 1 if anything failed, or if there are no results at all.
"""

import argparse
import json
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


def reports_of(results: Path) -> "dict[str, Path]":
    """By test, where the report of its cases is, if it left one."""
    names = (test.get("name", "?") for test in xml.parse(results).getroot().iter("testcase"))
    return {name: results.parent / "test_reports" / f"{name}.xml" for name in names}


def was_not_found(test: xml.Element) -> bool:
    """Whether ctest left a test out because its program is not there, which is no reason of the test's own."""
    skipped = test.find("skipped")
    return skipped is not None and "Unable to find executable" in skipped.get("message", "")


def count_results(results: Path) -> "tuple[Count, list[str]]":
    """What happened in one run of ctest, and the names of what failed. Raises OSError or ParseError without results."""
    count = Count()
    failures: "list[str]" = []
    reports = reports_of(results)
    if not reports:
        return Count(failed=1), ["no test was run"]
    for test in xml.parse(results).getroot().iter("testcase"):
        name = test.get("name", "?")
        status = test.get("status")
        cases = cases_of(reports[name])
        if status == "run" and cases is not None:
            count += cases
        elif status == "run":
            count += Count(passed=1)
        elif status in ("notrun", "disabled") and not was_not_found(test):
            count += Count(skipped=1)
        else:
            # A program may fail after its last case did well (a leak, a sanitizer's report): that is a failure of its own.
            if cases is not None:
                count += cases
            if cases is None or cases.failed == 0:
                count += Count(failed=1)
            failures.append(name)
    return count, failures


def times_of(report: Path) -> "list[tuple[float, str]]":
    """Seconds of each case of a report, with its name; empty if there is no complete one."""
    try:
        cases = xml.parse(report).getroot().iter("testcase")
        return [(float(case.get("time") or 0), f"{case.get('classname', '')}.{case.get('name', '?')}".lstrip(".")) for case in cases]
    except (OSError, xml.ParseError):
        return []


def times_of_results(results: Path) -> "list[tuple[float, str]]":
    """The same of a run of ctest: cases with a report of their own, and programs without."""
    try:
        reports = reports_of(results)
        tests = list(xml.parse(results).getroot().iter("testcase"))
    except (OSError, xml.ParseError):
        return []
    times: "list[tuple[float, str]]" = []
    for test in tests:
        name = test.get("name", "?")
        cases = [(seconds, f"{name}: {case}") for seconds, case in times_of(reports[name])]
        times += cases or [(float(test.get("time") or 0), name)]
    return [(seconds, f"{results.parent.name}: {name}") for seconds, name in times]


def print_sum(files: "list[Path]") -> int:
    total = Count()
    seconds = 0
    for file in files:
        try:
            counts = json.loads(file.read_text(encoding="utf-8"))
            total += Count(counts["passed"], counts["failed"], counts["skipped"])
            seconds += counts["seconds"]
        except (OSError, ValueError, KeyError) as error:
            print(f"no counts: {error}")
            total += Count(failed=1)
    print(f"{seconds} s in all")
    print(total)
    return 1 if total.failed else 0


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failed-steps", type=int, default=0)
    parser.add_argument("--python", type=Path, metavar="REPORT")
    parser.add_argument("--python-failed", action="store_true")
    parser.add_argument("--slowest", type=int, default=0, metavar="N")
    parser.add_argument("--counts", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--sum", action="store_true")
    parser.add_argument("results", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    if options.sum:
        return print_sum(options.results)
    times = [time for results in options.results for time in times_of_results(results)]
    if options.python is not None:
        times += [(seconds, f"python: {name}") for seconds, name in times_of(options.python)]
    if options.slowest:
        print(f"the slowest {options.slowest}:")
        for seconds, name in sorted(times, reverse=True)[:options.slowest]:
            print(f"  {seconds:6.1f} s  {name}")
    total = Count(failed=options.failed_steps)
    for results in options.results:
        try:
            count, failures = count_results(results)
        except (OSError, xml.ParseError) as error:
            count, failures = Count(failed=1), [f"no results: {error}"]
        print(f"{results.parent.name}: {count}")
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
    if options.counts is not None:
        options.counts.write_text(json.dumps({**total._asdict(), "seconds": options.seconds}), encoding="utf-8")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
