#!/usr/bin/python3
"""Holds every #include of the tree to the house's floors (docs/architecture.md), and files to a few plain rules.

    tools/check_includes.py [ROOT]      prints one line per violation; exit 1 if there is any

Rules, each with a test in tests/tools/check_includes_test.py:
  direction    a file sees its own folder and the floors below it, never a folder above or beside it
  public       a public header includes only public headers and the C++ standard library
  private      public headers are <unimem/folder/file.hpp>; private ones "folder/file.hpp"; nothing is relative to the file
  faces        apps, examples and the README's reader see public headers alone
  drivers      a driver's headers (CL/, cuda.h, …) are included under src/device only, CUDA's C++ libraries (cuda/…) by tests
  mpi          MPI's headers are included under include/unimem/cluster, and by who uses it: nothing of MPI is compiled into the library
  umbrella     include/unimem/unimem.hpp names every public header, and nobody inside the house includes it
  headers      docs/headers.md says of every public header whether its shape is fixed
  links        what a page of documentation links to inside the tree exists
  files        LF line ends, no tabs, no blanks at line ends, a newline at the end; the licence is where it should be
"""

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Iterator, NamedTuple

FLOORS = {
    "core": 0,
    "device": 1, "coherence": 1, "file": 1, "process": 1,
    "pool": 2,
    "manager": 3,
    "buffer": 4, "report": 4,
    "kernel": 5, "share": 5,
    "stream": 6, "cluster": 6,
}
APPS_FLOOR = 7
# Test folders named otherwise than the floor they test.
TEST_FLOORS = {"cli": APPS_FLOOR, "fuzz": APPS_FLOOR, "packaging": APPS_FLOOR, "processes": APPS_FLOOR, "tools": APPS_FLOOR, "weights": APPS_FLOOR}
# Made by CMake from cmake/version.hpp.in, so it is no file of the tree.
GENERATED_HEADERS = {"unimem/core/version.hpp"}
UMBRELLA = "include/unimem/unimem.hpp"
# What gives <unimem/cluster/...> to users.
MPI_HEADER = "include/unimem/mpi.hpp"
HEADERS_PAGE = "docs/headers.md"

SOURCES = {".hpp", ".h", ".cpp", ".inc"}
# Files of other kinds that are text and ours.
TEXT = SOURCES | {".py", ".sh", ".md", ".cmake", ".txt", ".in", ".json", ".yml", ".yaml", ".cl", ".expected", ".supp"}
TEXT_NAMES = {"dev", "run", "LICENSE", ".clang-format", ".clang-tidy", ".gitignore"}

STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert ccomplex cctype cerrno cfenv cfloat charconv chrono cinttypes ciso646
climits clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream functional
future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex
new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex
source_location span sstream stack stdexcept stop_token streambuf string string_view strstream syncstream system_error thread
tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
""".split())
DRIVER = re.compile(r"^(CL/|cuda(?!/)|nvrtc|hip/|Metal/|level_zero/)")
MPI = re.compile(r"^mpi(-ext)?\.h$")
CUDA_LIBRARY = re.compile(r"^(cuda|cub|thrust)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)


class Violation(NamedTuple):
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class Include(NamedTuple):
    line: int
    name: str
    quoted: bool


COMMENT_OR_LITERAL = re.compile(r"""
    R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"      # a raw string: kernel sources quoted in code have includes too
  | /\*(?:.|\n)*?\*/ | //[^\n]*              # a comment
  | (?P<kept>"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])')   # an ordinary literal, which may look like a comment's start
""", re.VERBOSE)


def without_comments(text: str) -> str:
    """The text with comments and raw strings blanked, line for line."""
    def blank(match: re.Match) -> str:
        return match.group(0) if match.group("kept") else re.sub(r"[^\n]", " ", match.group(0))
    return COMMENT_OR_LITERAL.sub(blank, text)


def includes_of(text: str) -> Iterator[Include]:
    text = without_comments(text)
    for match in INCLUDE.finditer(text):
        name = match.group(1) or match.group(2)
        yield Include(text.count("\n", 0, match.start()) + 1, name, match.group(2) is not None)


class Place(NamedTuple):
    """Where in the house a file stands."""
    kind: str      # "public", "private", "test", "app", "example", "benchmark" or "umbrella"
    folder: str    # its folder of the house, or "" where it belongs to none
    floor: int


def place_of(path: PurePosixPath) -> "Place | None":
    """The place of a source file of the tree; None for a file no rule speaks of. Raises KeyError for an unknown folder."""
    parts = path.parts
    if str(path) == UMBRELLA:
        return Place("umbrella", "", APPS_FLOOR)
    if str(path) == MPI_HEADER:
        return Place("public", "cluster", FLOORS["cluster"])
    if parts[:2] == ("include", "unimem"):
        return Place("public", parts[2], FLOORS[parts[2]])
    if parts[0] == "src":
        return Place("private", parts[1], FLOORS[parts[1]])
    if parts[0] == "tests" and len(parts) > 2:
        folder = parts[1]
        return Place("test", folder, TEST_FLOORS[folder] if folder in TEST_FLOORS else FLOORS[folder])
    if parts[0] == "apps":
        return Place("app", "", APPS_FLOOR)
    if parts[0] == "examples":
        return Place("example", "", APPS_FLOOR)
    if parts[0] == "benchmarks":
        return Place("benchmark", "", APPS_FLOOR)
    return None


def target_of(include: Include) -> "tuple[str, str] | None":
    """("public" | "private", folder) of an include that points into the house; None for one that points out of it."""
    parts = PurePosixPath(include.name).parts
    if not include.quoted and parts[0] == "unimem" and len(parts) > 2:
        return ("public", parts[1])
    if include.quoted and parts[0] in FLOORS and len(parts) > 1:
        return ("private", parts[0])
    return None


def check_source(path: PurePosixPath, text: str) -> Iterator[Violation]:
    """Every violation of the include rules in one source file."""
    try:
        place = place_of(path)
    except (KeyError, IndexError):
        yield Violation(str(path), 1, "direction", "this folder stands on no floor: give it one in tools/check_includes.py")
        return
    if place is None:
        return
    for include in includes_of(text):
        def violation(rule: str, message: str) -> Violation:
            return Violation(str(path), include.line, rule, message)

        if include.name == "unimem/unimem.hpp":
            if place.floor < APPS_FLOOR:
                yield violation("umbrella", "inside the house include what is used, not everything")
            continue
        if ".." in PurePosixPath(include.name).parts:
            yield violation("private", f'"{include.name}" climbs out of its folder: name it from src/ or include/')
            continue
        if include.quoted and include.name.startswith("unimem/"):
            yield violation("private", f"public headers are included as <{include.name}>")
            continue
        if DRIVER.match(include.name) and path.parts[:2] not in (("src", "device"), ("tests", "device")):
            yield violation("drivers", f"<{include.name}> belongs to a backend under src/device")
            continue
        if CUDA_LIBRARY.match(include.name) and place.kind != "test":
            yield violation("drivers", f"<{include.name}> is for tests: the library compiles without CUDA's")
            continue
        if MPI.match(include.name):
            if place.folder != "cluster" and place.kind not in ("example", "benchmark"):
                yield violation("mpi", f"<{include.name}> is for the floor cluster: the library is one for every MPI")
            continue
        target = target_of(include)
        if place.kind == "public" and (target is None or target[0] == "private"):
            if include.quoted or include.name not in STANDARD:
                yield violation("public", f"{include.name} is neither a public header nor of the standard library")
            continue
        if target is None:
            continue
        visibility, folder = target
        if folder not in FLOORS:
            yield violation("direction", f"<{include.name}> stands on no floor")
            continue
        if visibility == "private" and place.kind in ("app", "example"):
            yield violation("faces", f'"{include.name}" is private to the library')
            continue
        if "detail" in PurePosixPath(include.name).parts and place.kind == "example":
            yield violation("faces", f"<{include.name}> is for the library's own floors")
            continue
        if folder == place.folder:
            continue
        if FLOORS[folder] > place.floor:
            yield violation("direction", f"{place.folder} (floor {place.floor}) looks up at {folder} (floor {FLOORS[folder]})")
        elif FLOORS[folder] == place.floor:
            yield violation("direction", f"{place.folder} looks sideways at {folder} (both on floor {place.floor})")


def check_umbrella(headers: "set[str]", page: str, text: str) -> Iterator[Violation]:
    """Every header of the page's first table that the umbrella forgets, and every one that it adds or invents."""
    announced = headers_on(page.split("\n## ")[1]) if "\n## " in page else set()
    named = {include.name: include.line for include in includes_of(text)}
    for missing in sorted(announced - set(named)):
        yield Violation(UMBRELLA, 1, "umbrella", f"does not include <{missing}>")
    for name, line in named.items():
        if name not in headers:
            yield Violation(UMBRELLA, line, "umbrella", f"<{name}> is no public header")
        elif name not in announced:
            yield Violation(UMBRELLA, line, "umbrella", f"<{name}> is not in the first table of {HEADERS_PAGE}")


def headers_on(page: str) -> "set[str]":
    return {f"unimem/{name}" for name in re.findall(r"`(\w+/(?:detail/)?\w+\.hpp|mpi\.hpp)`", page)}


def check_headers_page(headers: "set[str]", text: str) -> Iterator[Violation]:
    """Every public header that docs/headers.md does not speak of, and every one it invents."""
    named = headers_on(text)
    for missing in sorted(headers - named):
        yield Violation(HEADERS_PAGE, 1, "headers", f"says nothing of <{missing}>")
    for unknown in sorted(named - headers):
        yield Violation(HEADERS_PAGE, 1, "headers", f"<{unknown}> is no public header")


def check_links(root: Path, path: PurePosixPath, text: str) -> Iterator[Violation]:
    """Every link of a page that leads to no file of the tree. A lambda in a block of code is no link."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block.group(0).count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)", text):
        if not (root / path.parent / match.group(1)).exists():
            line = text.count("\n", 0, match.start()) + 1
            yield Violation(str(path), line, "links", f"{match.group(1)} does not exist")


def check_text(path: str, data: bytes) -> Iterator[Violation]:
    """Every violation of the plain file rules."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.endswith(b"\r"):
            yield Violation(path, number, "files", "CRLF line end")
        elif b"\t" in line:
            yield Violation(path, number, "files", "tab")
        elif line != line.rstrip(b" "):
            yield Violation(path, number, "files", "blanks at the end of the line")
    if data and not data.endswith(b"\n"):
        yield Violation(path, data.count(b"\n") + 1, "files", "no newline at the end of the file")


def files_of(root: Path) -> "list[PurePosixPath]":
    """The files of the tree that are ours: what git tracks or would track, or simply all where there is no git."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"], capture_output=True,
                                check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    return sorted(PurePosixPath(name) for name in listed if name and (root / name).is_file())


def check_tree(root: Path) -> "list[Violation]":
    """Every violation in the tree at `root`, in the order of its files."""
    violations: "list[Violation]" = []
    public_headers = set(GENERATED_HEADERS)
    for path in files_of(root):
        name = str(path)
        if path.suffix not in TEXT and path.name not in TEXT_NAMES:
            continue
        data = (root / path).read_bytes()
        if path.parts[0] != "LICENSE":
            violations.extend(check_text(name, data))
        if path.suffix == ".md":
            violations.extend(check_links(root, path, data.decode("utf-8", "replace")))
        if path.suffix in SOURCES:
            violations.extend(check_source(path, data.decode("utf-8", "replace")))
        if path.parts[:2] == ("include", "unimem") and name != UMBRELLA:
            public_headers.add("/".join(path.parts[1:]))
    texts = {}
    for name, rule in ((HEADERS_PAGE, "headers"), (UMBRELLA, "umbrella")):
        if not (root / name).is_file():
            violations.append(Violation(name, 1, rule, "is missing"))
        texts[name] = (root / name).read_text(encoding="utf-8") if (root / name).is_file() else ""
    violations.extend(check_umbrella(public_headers, texts[HEADERS_PAGE], texts[UMBRELLA]))
    violations.extend(check_headers_page(public_headers, texts[HEADERS_PAGE]))
    licence = root / "LICENSE"
    if not licence.is_file() or "Apache License" not in licence.read_text(encoding="utf-8"):
        violations.append(Violation("LICENSE", 1, "files", "the Apache-2.0 licence text is missing"))
    readme = root / "README.md"
    if not readme.is_file() or "Apache-2.0" not in readme.read_text(encoding="utf-8"):
        violations.append(Violation("README.md", 1, "files", "names no licence (Apache-2.0)"))
    return violations


def main(arguments: "list[str]") -> int:
    root = Path(arguments[0]).resolve() if arguments else Path(__file__).resolve().parent.parent
    violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"check_includes: {len(violations)} violation{'s' if len(violations) != 1 else ''}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
