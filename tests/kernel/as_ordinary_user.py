"""Runs a program as an ordinary user, or says that it cannot: as_ordinary_user.py PROGRAM [ARGUMENT...]."""

import os
import sys

SKIPPED = 77
NOBODY = 65534


def main() -> None:
    program = sys.argv[1]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if not os.access(program, os.X_OK):
        print(f"an ordinary user cannot reach {program}")
        sys.exit(SKIPPED)
    os.execv(program, sys.argv[1:])


main()
