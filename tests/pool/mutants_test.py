#!/usr/bin/python3
"""Runs a build of the pool's suite once as it is, and once for each fault that can be switched on in it: the first must pass, every
other must fail, crash or hang. Prints what found each.

usage: mutants_test.py PROGRAM
"""

import os
import re
import signal
import subprocess
import sys

PATIENCE = 60  # seconds; a run without a fault takes a tenth


def run(program, mutant):
    environment = dict(os.environ, UNIMEM_POOL_MUTANT=mutant) if mutant else dict(os.environ)
    command = [program] if mutant == "list" else [program, "--gtest_fail_fast", "--gtest_brief=1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as running:
        try:
            output, _ = running.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            output, _ = running.communicate()
            return None, output
    return running.returncode, output


def found_by(code, output):
    failed = re.findall(r"\[  FAILED  \] ([^\s,]+)", output)
    if code is None:
        return "a run that did not end"
    if code < 0:
        return f"a run that ended by {signal.Signals(-code).name}"
    return failed[0] if failed else f"exit status {code}"


def main(program):
    code, output = run(program, None)
    if code != 0:
        print(output)
        sys.exit("the suite fails without a fault")
    mutants = [line.split("\t") for line in run(program, "list")[1].splitlines()]
    missed = []
    for name, fault in mutants:
        code, output = run(program, name)
        if code == 0:
            missed.append(name)
            print(f"{name} ({fault}): NOT FOUND", flush=True)
        else:
            print(f"{name} ({fault}): found by {found_by(code, output)}", flush=True)
    print(f"{len(mutants) - len(missed)} of {len(mutants)} found")
    if missed or not mutants:
        sys.exit("faults that no test finds: " + ", ".join(missed))


if __name__ == "__main__":
    main(sys.argv[1])
