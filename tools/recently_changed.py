#!/usr/bin/env python3
"""Prints, as patterns for run-clang-tidy, the sources to be linted because of what the last commits and the working tree changed: each
changed source, and for a changed header the sources that include it in its own folder, else the first that does anywhere. Without that
much history: everything."""

import pathlib
import re
import subprocess
import sys

COMMITS = 8
SHIPPED = ("src", "apps", "examples", "python/src")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def sources():
    return sorted(file for folder in SHIPPED for file in (ROOT / folder).rglob("*.cpp"))


def main():
    changed = git("diff", "--name-only", f"HEAD~{COMMITS}", "--", "include", *SHIPPED)
    if changed.returncode != 0:
        print(f"{ROOT}/({'|'.join(SHIPPED)})/.*")
        return 0
    wanted = set()
    for name in changed.stdout.split():
        file = ROOT / name
        if not file.exists():
            continue
        if file.suffix == ".cpp":
            wanted.add(file)
        elif file.suffix == ".hpp":
            # As it is named in an #include line: below include/ or src/, or beside the file that names it.
            short = re.sub(r"^(include|src|apps/[^/]+|python/src)/", "", name)
            line = re.compile(rf'#include [<"](?:[^">]*/)?{re.escape(short)}[">]')
            users = [source for source in sources() if line.search(source.read_text())]
            near = [source for source in users if source.parent.name == file.parent.name]
            wanted.update(near or users[:1])
    print("\n".join(f"^{re.escape(str(file))}$" for file in sorted(wanted)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
