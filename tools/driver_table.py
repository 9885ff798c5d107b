#!/usr/bin/python3
"""Makes the table of OpenCL drivers in docs/drivers.md of what the conformance suites said on each.

    tools/driver_table.py [--write] [--document docs/drivers.md] BUILD

BUILD is a build folder in which `./dev check` has run: opencl_conformance.txt names the drivers and the programs of the suites,
test_reports/ holds what each said. Without --write the table of the document is compared with what it should be.

Exit 1 if it is another, if a suite has no report or failed, if a driver is missing without a reason, or if a test was left out on one
driver that ran on another and gives no reason.
"""

import argparse
import fnmatch
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- made by tools/driver_table.py: what the tests said -->"
END = "<!-- until here -->"
NAMES = {
    "pocl": "PoCL, on the host's CPU",
    "intel": "Intel's runtime for CPUs",
    "rusticl": "Mesa's Rusticl, on llvmpipe",
    "oclgrind": "Oclgrind, which watches every access of a kernel",
}
PROPERTIES = {  # what device_opencl_test records, and how the table calls it
    "version": "speaks",
    "doubles": "doubles",
    "atomics64": "64-bit atomics",
    "shared_memory": "memory shared with the host",
    "images": "images",
    "command_buffers": "command buffers",
    "alignment": "alignment, bytes",
}
# A case that is made only where host and device can share memory is no case of its own where they cannot.
OF_SHARED_MEMORY = re.compile(r"/(Shared|opencl_shared)$")


class Fault(Exception):
    """What keeps the table from being made, or is wrong with what it says."""


class Suite(NamedTuple):
    """What one program said on one driver."""

    ran: "frozenset[str]"
    skipped: "dict[str, str]"  # reasons by case
    properties: "dict[str, str]"


class LeftOut(NamedTuple):
    """What of a program does not run on Oclgrind: a filter of GoogleTest's, or nothing."""

    pattern: str
    reason: str


def read_conformance(build: Path) -> "tuple[dict[str, str], dict[str, LeftOut]]":
    """Drivers with why they are missing (empty: they are here), and programs with what of them is left out."""
    drivers: "dict[str, str]" = {}
    programs: "dict[str, LeftOut]" = {}
    try:
        text = (build / "opencl_conformance.txt").read_text(encoding="utf-8")
    except OSError as error:
        raise Fault(f"no list of suites: {error}") from None
    for line in text.splitlines():
        kind, name, pattern, reason = line.split("|", 3)
        if kind == "driver":
            drivers[name] = reason
        else:
            programs[name] = LeftOut(pattern, reason)
    if not programs:
        raise Fault(f"{build}: no program of the conformance suites")
    return drivers, programs


def read_suite(build: Path, program: str, driver: str) -> Suite:
    report = build / "test_reports" / f"{program}_{driver}.xml"
    try:
        root = xml.parse(report).getroot()
    except (OSError, xml.ParseError) as error:
        raise Fault(f"{program} on {driver} has left no report: {error}") from None
    ran: "set[str]" = set()
    skipped: "dict[str, str]" = {}
    properties: "dict[str, str]" = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '?')}"
        note = case.find("skipped")
        if case.find("failure") is not None:
            raise Fault(f"{program} on {driver}: {name} failed")
        if case.get("status") == "notrun":
            continue
        if note is not None or case.get("result") == "skipped":
            # GoogleTest writes the place in the source on a line of its own.
            lines = (note.get("message", "") if note is not None else "").splitlines()
            skipped[name] = " ".join(line for line in lines[1:] if line.strip()).strip()
        else:
            ran.add(name)
        properties.update({item.get("name", ""): item.get("value", "") for item in case.iter("property")})
    if not ran:
        raise Fault(f"{program} on {driver}: no test has run")
    return Suite(frozenset(ran), skipped, properties)


def family(program: str) -> str:
    return program.split("_", 1)[0]


def reasons(suite: Suite, ran_elsewhere: "set[str]", left_out: LeftOut, shares: bool, where: str) -> "list[str]":
    """Why tests that ran on another driver did not on this one, each reason once."""
    found: "set[str]" = set()
    for name in sorted(ran_elsewhere - suite.ran):
        if name.startswith("KnownFaults."):  # it looks for the fault of one driver, and its own words tell where there is none
            continue
        if name in suite.skipped:
            reason = suite.skipped[name]
        elif left_out.pattern and fnmatch.fnmatchcase(name, left_out.pattern):
            reason = left_out.reason
        elif OF_SHARED_MEMORY.search(name) and not shares:
            reason = "no memory shared with the host"
        else:
            reason = ""
        if not reason:
            raise Fault(f"{where}: {name} is skipped without a reason, and runs on another driver")
        # The device's own names say nothing that the line does not.
        found.add(re.sub(r"^opencl:\S+|^'?opencl:\S+", "the device", reason))
    return sorted(found)


def make_table(build: Path) -> "tuple[str, list[str]]":
    """The table's lines, and the drivers that are missing."""
    drivers, programs = read_conformance(build)
    missing = [driver for driver, reason in drivers.items() if reason]
    for driver in missing:
        if drivers[driver] == "not found":
            raise Fault(f"the driver {driver} is missing without a reason (UNIMEM_WITHOUT_OPENCL_DRIVERS)")
    here = [driver for driver in drivers if driver not in missing]
    suites = {(program, driver): read_suite(build, program, driver) for program in programs for driver in here}
    families = list(dict.fromkeys(map(family, programs)))
    recorded = {driver: {k: v for program in programs for k, v in suites[program, driver].properties.items()} for driver in here}
    head = ["driver", "version", *PROPERTIES.values(), *families]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    notes: "list[str]" = []
    for driver in here:
        known = recorded[driver]
        absent = [name for name in ("driver", *PROPERTIES) if name not in known]
        if absent:
            raise Fault(f"{driver}: nothing was recorded of {', '.join(absent)}")
        cells = [NAMES[driver], re.sub(r"^Oclgrind ", "", known["driver"]), *(known[name] for name in PROPERTIES)]
        for suite in families:
            why: "list[str]" = []
            for program in filter(lambda name: family(name) == suite, programs):
                elsewhere = {name for other in here for name in suites[program, other].ran}
                shares = known["shared_memory"] == "yes"
                left_out = programs[program] if driver == "oclgrind" else LeftOut("", "")
                why += reasons(suites[program, driver], elsewhere, left_out, shares, f"{program} on {driver}")
            why = sorted(set(why))
            cells.append("passes, with gaps" if why else "passes")
            notes += [f"- {NAMES[driver].split(',')[0]}, {suite}: {reason}" for reason in why]
        lines.append("| " + " | ".join(cells) + " |")
    if notes:
        lines += ["", "Gaps: tests that run on another driver, and why they do not on this one.", "", *notes]
    return "\n".join(lines), missing


def without_rows(text: str, drivers: "list[str]") -> str:
    """What is left to compare where drivers are missing: neither their lines, nor gaps that only they show."""
    if not drivers:
        return text
    gone = [NAMES[driver].split(",")[0] for driver in drivers]
    return "\n".join(line for line in text.splitlines()
                     if line.startswith("| ") and not any(line.startswith(f"| {name}") for name in gone))


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "drivers.md")
    parser.add_argument("build", type=Path)
    options = parser.parse_args(arguments)
    try:
        table, missing = make_table(options.build)
        text = options.document.read_text(encoding="utf-8")
        if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
            raise Fault(f"{options.document}: the table has no place, between {BEGIN} and {END}")
        before, rest = text.split(BEGIN)
        old, after = rest.split(END)
        if options.write:
            if missing:
                raise Fault(f"the table needs every driver, and there is no {', '.join(missing)}")
            options.document.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
        elif without_rows(old.strip(), missing) != without_rows(table, missing):
            raise Fault(f"{options.document}: the table of drivers is not what the tests say; "
                        f"after ./dev check: python3 tools/driver_table.py --write {options.build}\n\n{table}")
    except Fault as fault:
        print(f"driver_table.py: {fault}", file=sys.stderr)
        return 1
    for driver in missing:
        print(f"without {driver}: see UNIMEM_WITHOUT_OPENCL_DRIVERS")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
