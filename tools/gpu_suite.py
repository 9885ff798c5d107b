"""One GoogleTest program on a device that may hang or take the program with it: what became of each of its tests.

GoogleTest's own report is written when a program ends; one that crashed leaves none. So its lines are read as they come, and
after a crash or a silence the program is started again with the tests that have not had their turn.
"""

import os
import re
import selectors
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+?)(?:,? where .*)?(?: \(\d+ ms\))?$")
SILENCE_SECONDS = 30.0
STACK_SECONDS = 15.0


class Outcome(NamedTuple):
    """What a program's tests did. `skipped` holds the reasons; `problems` what was wrong with the program itself."""

    passed: "list[str]"
    failed: "list[str]"
    skipped: "dict[str, str]"
    problems: "list[str]"
    output: "list[str]"
    seconds: float

    @property
    def green(self) -> bool:
        return not self.failed and not self.problems and bool(self.passed)


def stacks_of(process: "subprocess.Popen[bytes]") -> "list[str]":
    """Where the threads of a program that fell silent stand, where a debugger is installed."""
    debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
    if debugger is None:
        return []
    command = [debugger, "-p", str(process.pid), "-batch", "-nx", "-ex", "thread apply all backtrace 24"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              check=False, timeout=STACK_SECONDS)
    except subprocess.TimeoutExpired:
        return ["the debugger did not answer"]
    return said.stdout.splitlines()


def lines_of(process: "subprocess.Popen[bytes]", end: float):
    """The lines a program says; the last one is None if it fell silent or its time was up, and it is ended then."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    heard, rest = time.monotonic(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            left = min(end, heard + SILENCE_SECONDS) - now
            if left <= 0 or not selector.select(left):
                yield from stacks_of(process)
                process.kill()
                yield None
                return
            heard, chunk = time.monotonic(), process.stdout.read() or b""
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def run_suite(build: Path, name: str, seconds: float, wrapper: "list[str] | None" = None, tests: str = "*",
              restarts: int = 3) -> Outcome:
    """Runs build/tests/**/<name> for at most so many seconds. What never got its turn counts as failed."""
    begin = time.monotonic()
    outcome = Outcome([], [], {}, [], [], 0)
    found = sorted(build.glob(f"tests/*/{name}"))
    if not found:
        outcome.problems.append(f"{name} was not built")
        return outcome
    done: "list[str]" = []
    for attempt in range(restarts + 1):
        positive, _, negative = tests.partition("-")
        left_out = ":".join(filter(None, [negative, *done]))
        command = [*(wrapper or []), str(found[0]), f"--gtest_filter={positive or '*'}{'-' + left_out if left_out else ''}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=build) as process:
            running, ended, said = _read(process, begin + seconds, outcome, done)
        if ended and process.returncode == 0 and running is None:
            break
        if ended and running is None:
            # Its tests have had their turn: a failed one is told already, anything else is the program's own.
            if process.returncode != 1 or not outcome.failed:
                outcome.problems.append(f"{name} ended with {process.returncode}: {said[-1] if said else ''}")
            break
        why = f"crashed with {process.returncode}" if ended else "hung, or its time was up"
        outcome.problems.append(f"{name}: {running or 'before any test'} {why}")
        if running is not None:
            outcome.failed.append(running)
            done.append(running)
        if running is None or attempt == restarts or time.monotonic() - begin >= seconds:
            outcome.problems.append(f"{name}: what came after it was not run")
            break
    return outcome._replace(seconds=time.monotonic() - begin)


def _read(process: "subprocess.Popen[bytes]", end: float, outcome: Outcome, done: "list[str]"):
    """Takes down what the program says: the test it stopped in, if any; whether it ended by itself; its words."""
    running, said, in_test = None, [], []
    for line in lines_of(process, end):
        if line is None:
            process.wait()
            return running, False, said
        said.append(line)
        outcome.output.append(line)
        match = LINE.match(line)
        if match is None:
            in_test.append(line)
            continue
        what, test = match.groups()
        if what == "RUN":
            running, in_test = test, []
        elif test == running:
            if what == "OK":
                outcome.passed.append(test)
            elif what == "SKIPPED":
                outcome.skipped[test] = next((text for text in reversed(in_test) if text.strip()), "no reason was told")
            else:
                outcome.failed.append(test)
                print("\n".join([*in_test, line]), flush=True)
            done.append(test)
            running = None
    process.wait()
    return running, True, said
