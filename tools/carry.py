#!/usr/bin/python3
"""Fills a folder with everything that `./dev gpu` needs on a machine without a network and without packages.

    tools/carry.py FOLDER

Headers and sources of the libraries come from this system, where they must be installed; CUDA's run-time compiler from
PyPI (tools/gpu-wheels.txt), and what the Python bindings are built with (tools/python-wheels.txt). What is there already
and still wanted is left as it is. The folder holds nothing of this system's own: no program and no library but NVRTC, so it
serves every distribution for x86-64.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = {"nvidia-cuda-nvrtc-cu12": ROOT / "tools" / "gpu-wheels.txt", "nanobind": ROOT / "tools" / "python-wheels.txt"}
LARGEST_BYTES = 40 << 20  # what a slow link and a careful mail server still take

# Each is a folder of headers, with one of them to know it by.
HEADERS = {"fmt": "format.h", "spdlog": "spdlog.h", "nlohmann": "json.hpp", "CLI": "CLI.hpp", "CL": "cl.h"}
XXHASH_HEADERS = ["xxhash.h", "xxh3.h"]
INCLUDE_FOLDERS = [Path("/usr/include"), Path("/usr/local/include")]
GOOGLETEST_FOLDERS = [Path("/usr/src/googletest"), Path("/usr/local/src/googletest")]
GOOGLETEST_PARTS = ["googletest/include", "googletest/src", "googlemock/include", "googlemock/src"]
NVRTC_LIBRARIES = ["libnvrtc.so.12", "libnvrtc-builtins.so.12.4"]


def find(folders: "list[Path]", proof: str) -> Path:
    """The first of the folders that holds `proof`."""
    for folder in folders:
        if (folder / proof).is_file():
            return folder
    sys.exit(f"carry.py: no {proof} in {', '.join(map(str, folders))}; install what CONTRIBUTING.md names")


def copy_boost(target: Path) -> None:
    """Of a library of this size what `src` includes, and what that includes in its turn."""
    source = find(INCLUDE_FOLDERS, "boost/version.hpp")
    include = re.compile(r'^\s*#\s*include\s*[<"](boost/[^>"]+)[>"]', re.MULTILINE)
    wanted = [name for file in (ROOT / "src").rglob("*.[ch]pp") for name in include.findall(file.read_text())]
    while wanted:
        name = wanted.pop()
        copy = target / "include" / name
        if copy.exists() or not (source / name).is_file():  # what another compiler or system would have is named, too
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)
        wanted += include.findall(copy.read_text())


def copy_sources(target: Path) -> None:
    for name, header in HEADERS.items():
        source = find(INCLUDE_FOLDERS, f"{name}/{header}") / name
        # spdlog's own copy of fmt would be a second one.
        ignored = shutil.ignore_patterns("bundled") if name == "spdlog" else None
        shutil.copytree(source, target / "include" / name, ignore=ignored)
    for header in XXHASH_HEADERS:
        shutil.copyfile(find(INCLUDE_FOLDERS, header) / header, target / "include" / header)
    copy_boost(target)
    source = find(GOOGLETEST_FOLDERS, "googletest/src/gtest-all.cc")
    for part in GOOGLETEST_PARTS:
        shutil.copytree(source / part, target / "googletest" / part)


def pinned(name: str) -> str:
    """What its list says of a wheel: version and hashes."""
    [found] = re.findall(rf"^{name}==(?:.*\\\n)*.*\n", WHEELS[name].read_text(), re.MULTILINE)
    return found


def fetch(name: str, folder: str) -> Path:
    """The wheel, by pip, which checks its hash."""
    (Path(folder) / "wanted.txt").write_text(pinned(name))
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "5",
                    "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", folder, "--requirement",
                    os.path.join(folder, "wanted.txt")], check=True)
    [wheel] = Path(folder).glob("*.whl")
    return wheel


def pack_nvrtc(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as repacked:
        for entry in packed.namelist():
            if Path(entry).name in NVRTC_LIBRARIES:
                repacked.writestr(Path(entry).name, packed.read(entry))
        missing = set(NVRTC_LIBRARIES) - set(repacked.namelist())
        if missing:
            sys.exit(f"carry.py: {wheel.name} holds no {', '.join(sorted(missing))}")


def fetch_wheels(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as fetched:
        pack_nvrtc(fetch("nvidia-cuda-nvrtc-cu12", fetched), folder / "nvrtc.zip")
    shutil.rmtree(folder / "python", ignore_errors=True)
    with tempfile.TemporaryDirectory() as fetched, zipfile.ZipFile(fetch("nanobind", fetched)) as wheel:
        wheel.extractall(folder / "python")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("include", "googletest"):
        shutil.rmtree(folder / old, ignore_errors=True)
    copy_sources(folder)
    # Told last of each, so that what was interrupted is begun again.
    wheels, wanted = folder / "wheels.txt", "".join(pinned(name) for name in WHEELS)
    if not (folder / "nvrtc.zip").is_file() or not wheels.is_file() or wheels.read_text() != wanted:
        wheels.unlink(missing_ok=True)
        fetch_wheels(folder)
        wheels.write_text(wanted)
    total = size_of(folder)
    if total > LARGEST_BYTES:
        sys.exit(f"carry.py: {folder} has grown to {total / (1 << 20):.1f} MiB, more than {LARGEST_BYTES >> 20} MiB")
    print(f"{folder}: {total / (1 << 20):.1f} MiB, ready to travel with the working tree")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
