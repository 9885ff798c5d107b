#!/usr/bin/python3
"""Runs libFuzzer's programs of a build folder and prints one table of what became of them.

    tools/fuzz.py [--seconds N] [--jobs N] BUILD [NAME...]

BUILD was made with the preset `fuzz`. Without names every program runs, each for N seconds (UNIMEM_FUZZ_SECONDS, else 300), as many
at once as there are processors. A program starts from the corpus of the tree, tests/fuzz/corpus/NAME, and from what earlier runs
found worth keeping in BUILD/corpus/NAME. What it writes is in BUILD/NAME.log, an input that it fails on in BUILD/NAME-*.
Lines are those of the parser that were run, in this run, of those that there are.

Exit 1 if any has found something, or has run nothing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Outcome(NamedTuple):
    name: str
    executions: int
    seconds: float
    lines: "tuple[int, int] | None"  # run, of
    finding: str  # "" for none

    def __str__(self) -> str:
        lines = "none" if self.lines is None else f"{self.lines[0]}/{self.lines[1]} {100 * self.lines[0] / self.lines[1]:5.1f} %"
        return f"{self.name:16} {self.executions:>12,} {self.seconds:>8.0f} {lines:>16}  {self.finding or 'none'}"


def executions_in(log: str) -> int:
    """How many inputs a log of libFuzzer's says that it ran: its last number with `#`, or its statistics."""
    found = re.findall(r"^stat::number_of_executed_units: (\d+)", log, re.MULTILINE) or re.findall(r"^#(\d+)\s", log, re.MULTILINE)
    return int(found[-1]) if found else 0


def finding_in(log: str, status: int) -> str:
    """What a log of libFuzzer's tells of a program that failed, in one line; empty for one that did not."""
    if status == 0:
        return ""
    told = re.search(r"^SUMMARY: (.*)$|^(.*runtime error: .*)$", log, re.MULTILINE)
    # What a target found by itself it says before it aborts.
    own = re.search(r"^([a-z_]+: .*)\n==\d+== ERROR: libFuzzer: deadly signal", log, re.MULTILINE)
    return own.group(1) if own else (told.group(1) or told.group(2)) if told else f"exit status {status}"


def lines_in(summary: dict) -> "tuple[int, int] | None":
    """Lines run, and all, of the library's sources in what `llvm-cov export -summary-only` writes."""
    files = [one["summary"]["lines"] for one in summary["data"][0]["files"] if Path(one["filename"]).is_relative_to(ROOT / "src")]
    return (sum(one["covered"] for one in files), sum(one["count"] for one in files)) if files else None


def coverage(program: Path, raw: Path) -> "tuple[int, int] | None":
    """None if the program ended without saying what it ran, as one that is aborted does."""
    if not raw.exists() or not raw.stat().st_size:
        return None
    merged = raw.with_suffix(".profdata")
    subprocess.run(["llvm-profdata-19", "merge", "-o", merged, raw], check=True)
    told = subprocess.run(["llvm-cov-19", "export", "-summary-only", "-instr-profile", merged, program], check=True, capture_output=True)
    return lines_in(json.loads(told.stdout))


def fuzz(build: Path, name: str, seconds: int) -> Outcome:
    program = build / "tests/fuzz" / f"fuzz_{name}"
    kept, log = build / "corpus" / name, build / f"{name}.log"
    kept.mkdir(parents=True, exist_ok=True)
    for old in (*build.glob(f"{name}-*"), build / f"{name}.profraw"):
        old.unlink(missing_ok=True)
    # Folders and files that a program makes are its own, and go with it whatever ends it.
    with tempfile.TemporaryDirectory() as temporary, log.open("wb") as out:
        environment = dict(os.environ, LLVM_PROFILE_FILE=str(build / f"{name}.profraw"), TMPDIR=temporary)
        command = [program, f"-max_total_time={seconds}", "-timeout=10", "-print_final_stats=1", f"-artifact_prefix={build}/{name}-", kept,
                   ROOT / "tests/fuzz/corpus" / name]
        try:
            status = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False, timeout=seconds + 120).returncode
        except subprocess.TimeoutExpired:
            return Outcome(name, 0, seconds + 120, None, "did not end")
    text = log.read_text(encoding="utf-8", errors="replace")
    done = re.search(r"^Done \d+ runs in (\d+) second", text, re.MULTILINE)
    return Outcome(name, executions_in(text), float(done.group(1)) if done else 0, coverage(program, build / f"{name}.profraw"),
                   finding_in(text, status))


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description="Runs libFuzzer's programs of a build folder.")
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("UNIMEM_FUZZ_SECONDS") or 300))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("build", type=Path)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args(arguments)
    build = chosen.build.resolve()
    names = chosen.names or sorted(source.name.removesuffix("_fuzz.cpp") for source in (ROOT / "tests/fuzz").glob("*_fuzz.cpp"))
    with ThreadPoolExecutor(chosen.jobs) as pool:
        outcomes = list(pool.map(lambda name: fuzz(build, name, chosen.seconds), names))
    print(f"{'target':16} {'executions':>12} {'seconds':>8} {'lines':>16}  findings")
    print(*outcomes, sep="\n")
    failed = [one for one in outcomes if one.finding or not one.executions]
    for one in failed:
        print(f"\nthe end of {build / one.name}.log:")
        print(*(build / f"{one.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-25:], sep="\n")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
