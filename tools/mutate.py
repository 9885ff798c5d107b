#!/usr/bin/python3
"""Writes a folder of sources once more with faults in it that tests switch on, one at a time.

    tools/mutate.py MUTANTS SOURCES OUTPUT NAMESPACE

MUTANTS is a text of blocks. Each begins with a fault's name and what it does; the changes follow it, each a source's name, the line to be
replaced (-) and what stands there instead (+, and nothing after it for nothing), without indentation and final comments. Where the line
stands more than once in the source, the one before it is given too (=):

    stale_source: copies from a place that once held the bytes
      plan.cpp
      - auto const found = source.valid.find(here);
      + auto const found = source.held.find(here);

Every source of SOURCES is written to OUTPUT with each such line as `active fault ? replacement : line`: a line is a whole statement, or
begins one with a condition (`if (…) {`). OUTPUT/mutants.hpp, which they include, declares NAMESPACE::Mutant, `active_mutant`, which the
tests define and set, and `all_mutants`. A line that is not there, or is there more than once, is an error.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple


class Change(NamedTuple):
    mutant: str
    file: str
    line: str
    instead: str
    before: "str | None"


class Mutants(NamedTuple):
    faults: "dict[str, str]"
    changes: "list[Change]"


def bare(line: str) -> str:
    """A line without indentation and the comment at its end."""
    return re.sub(r"\s+// .*$", "", line).strip()


def parse(text: str) -> Mutants:
    faults: "dict[str, str]" = {}
    changes: "list[Change]" = []
    name = file = line = before = None
    for number, one in enumerate(text.splitlines(), 1):
        if not one.strip() or one.startswith("#"):
            continue
        if head := re.fullmatch(r"(\w+): (.+)", one):
            name, file, line, before = head[1], None, None, None
            if name in faults:
                raise SystemExit(f"line {number}: the fault {name} stands there twice")
            faults[name] = head[2]
        elif name and (source := re.fullmatch(r"  (\w+\.[ch]pp)", one)):
            file = source[1]
        elif file and one.startswith("  = "):
            before = one[4:].strip()
        elif file and one.startswith("  - "):
            line = one[4:].strip()
        elif file and line is not None and re.match(r"  \+( |$)", one):
            changes.append(Change(name or "", file, line, one[3:].strip(), before))
            line = before = None
        else:
            raise SystemExit(f"line {number}: neither a fault nor a change: {one}")
    for fault in faults.keys() - {change.mutant for change in changes}:
        raise SystemExit(f"{fault} changes nothing")
    return Mutants(faults, changes)


def condition_of(line: str) -> "tuple[str, str, str] | None":
    """`if (`, its condition and the rest of the line."""
    if not (begin := re.match(r"(?:\} else )?if \(", line)):
        return None
    depth = 1
    for at in range(begin.end(), len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return line[:begin.end()], line[begin.end():at], line[at:]
    return None


def value_of(line: str) -> "tuple[str, str, str] | None":
    """What is initialized or assigned, its value and the semicolon, of one statement."""
    begin = re.match(r"[^=(]*[^=!<>+*/|&^(-]= ", line)
    if not begin or not line.endswith(";"):
        return None
    value, depth = line[begin.end():-1], 0
    for sign in value:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == ";" and depth == 0:
            return None
    return begin[0], value, ";"


def mutated(line: str, changes: "list[Change]", namespace: str) -> str:
    """The line with all faults that it is to have: those of a value or a condition within, those of the statement around it."""
    statements = []
    for change in changes:
        active = f"::{namespace}::active_mutant == ::{namespace}::Mutant::{change.mutant}"
        for part_of in (condition_of, value_of):
            was, becomes, now = part_of(bare(change.line)), part_of(change.instead), part_of(line)
            if was and becomes and now and (was[0], was[2]) == (becomes[0], becomes[2]):
                line = f"{now[0]}{active} ? ({becomes[1]}) : ({now[1]}){now[2]}"
                break
        else:
            statements.append((active, change.instead))
    if statements and not line.endswith(";"):
        raise SystemExit(f"not a whole statement, of which its condition alone may change: {line}")
    for active, instead in statements:
        line = f"if ({active}) {{ {instead} }} else {{ {line} }}"
    return line


def mutate(source: Path, changes: "list[Change]", namespace: str) -> str:
    """The source with its faults."""
    lines = source.read_text(encoding="utf-8").splitlines()
    places: "dict[int, list[Change]]" = {}
    for change in changes:
        found = [i for i, line in enumerate(lines) if bare(line) == change.line
                 and (change.before is None or (i > 0 and bare(lines[i - 1]) == change.before))]
        if len(found) != 1:
            raise SystemExit(f"{change.mutant}: {len(found)} lines of {source} are {change.line!r}, and not one")
        places.setdefault(found[0], []).append(change)
    for at, group in places.items():
        lines[at] = mutated(bare(lines[at]), group, namespace)
    return "\n".join([*(['#include "mutants.hpp"'] if changes else []), f'#line 1 "{source}"', *lines, ""])


def header_of(mutants: Mutants, namespace: str) -> str:
    names = ", ".join(mutants.faults)
    rows = "".join(f'    {{Mutant::{name}, "{name}", "{fault}"}},\n' for name, fault in mutants.faults.items())
    return f"""#pragma once
// Written by tools/mutate.py.
namespace {namespace} {{
enum class Mutant {{ none, {names} }};
extern Mutant active_mutant;
struct MutantText {{
  Mutant mutant;
  char const* name;
  char const* fault;
}};
template <class Stream>
Stream& operator<<(Stream& out, MutantText const& text) {{ out << text.name; return out; }}
inline constexpr MutantText all_mutants[] = {{
{rows}}};
}}  // namespace {namespace}
"""


def main(arguments: "list[str]") -> int:
    if len(arguments) != 4:
        raise SystemExit(__doc__)
    mutants_file, folder, output, namespace = Path(arguments[0]), Path(arguments[1]), Path(arguments[2]), arguments[3]
    mutants = parse(mutants_file.read_text(encoding="utf-8"))
    sources = sorted([*folder.glob("*.cpp")])
    for file in {change.file for change in mutants.changes} - {source.name for source in sources}:
        raise SystemExit(f"{folder} has no source {file}")
    output.mkdir(parents=True, exist_ok=True)
    (output / "mutants.hpp").write_text(header_of(mutants, namespace), encoding="utf-8")
    for source in sources:
        changes = [change for change in mutants.changes if change.file == source.name]
        (output / source.name).write_text(mutate(source, changes, namespace), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
