#!/usr/bin/python3
"""Runs a build of the pool's suite once as it is, and once for each fault that can be switched on in it: the first must pass, every
other must fail or crash. Prints what found each. A run that takes far longer than the first has found nothing by that: a machine
may be slow, and a test that waits for ever says nothing of why.

usage: mutants_test.py PROGRAM
"""

import os
import re
import signal
import subprocess
import sys
import time

MOST = 600  # seconds, for the run without a fault
LEAST_PATIENCE = 60  # seconds, for one with a fault
SLOWER = 10  # times the run without a fault, where that is more
HANGING = frozenset()  # names of faults that nothing but a run without an end can show


def run(program, mutant, patience=MOST):
    environment = dict(os.environ, UNIMEM_POOL_MUTANT=mutant) if mutant else dict(os.environ)
    command = [program] if mutant == "list" else [program, "--gtest_fail_fast", "--gtest_brief=1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as running:
        try:
            output, _ = running.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            running.kill()
            output, _ = running.communicate()
            return None, output
    return running.returncode, output


def found_by(name, code, output):
    """What found a fault, in words; None if nothing did. `code` is None for a run that did not end."""
    failed = re.findall(r"\[  FAILED  \] ([^\s,]+)", output)
    if code is None:
        return failed[0] if failed else "a run that did not end" if name in HANGING else None
    if code < 0:
        return f"a run that ended by {signal.Signals(-code).name}"
    if code == 0:
        return None
    return failed[0] if failed else f"exit status {code}"


def check_verdicts():
    assert found_by("any", None, "") is None and found_by("any", 0, "") is None
    assert found_by("any", None, "[  FAILED  ] Pool.Waits (3 ms)\n") == "Pool.Waits", "and could not end then"
    assert found_by("any", 1, "[  FAILED  ] Pool.Waits, where\n") == "Pool.Waits"
    assert found_by("any", -11, "") == "a run that ended by SIGSEGV"


def main(program):
    check_verdicts()
    begin = time.monotonic()
    code, output = run(program, None)
    if code != 0:
        print(output)
        sys.exit("the suite fails without a fault")
    patience = max(LEAST_PATIENCE, SLOWER * (time.monotonic() - begin))
    mutants = [line.split("\t") for line in run(program, "list")[1].splitlines()]
    missed = []
    for name, fault in mutants:
        code, output = run(program, name, patience)
        finder = found_by(name, code, output)
        if finder is None:
            missed.append(name)
            print(f"{name} ({fault}): NOT FOUND{'' if code == 0 else f' in {patience:.0f} seconds'}", flush=True)
        else:
            print(f"{name} ({fault}): found by {finder}", flush=True)
    print(f"{len(mutants) - len(missed)} of {len(mutants)} found")
    if missed or not mutants:
        sys.exit("faults that no test finds: " + ", ".join(missed))


if __name__ == "__main__":
    main(sys.argv[1])
