#!/usr/bin/python3
"""Builds without a network, and runs on a real GPU what the stand-in driver cannot show. `./dev gpu` calls it.

    tools/gpu.py [--build-only | --built] [--only PART]… [--seconds N]

It needs a compiler, CMake, make or Ninja, this Python, and .gpu/, which `./dev gpu --prepare` fills on a machine with a
network. On cuda:0 it runs first the steps of STEPS, from what can hardly go wrong to what may end the driver, each within a
minute, so that what is learnt soon is learnt first; then what is left of the suites that the build lists in hardware_suites.txt,
the Python bindings beside CuPy and PyTorch where these, pytest and Python's headers are installed, compute-sanitizer over the
core of the suites where it is, and the GPU benchmarks; prints one table; and writes it to build/gpu/results.md.

Exit 0 if everything was green and every speed reached; 3 if all was right and some speed was not reached; 1 otherwise,
also where there is no GPU or no driver, which is told after the build.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
import zipfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_suite import Outcome, run_suite  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
CARRIED = ROOT / ".gpu"
BUILD = ROOT / "build" / "gpu"
OLDEST_CMAKE = (3, 25)
PARTS = ("steps", "suites", "python", "sanitizers", "benchmarks")

# What compute-sanitizer looks at: tool, program, which of its tests, seconds. The tests make calls on purpose that a driver
# refuses, so refusals are no findings. Left out is what takes all memory, of which the tool wants a share, and what strays.
SANITIZED = [
    ("memcheck", "device_cuda_test", "*DeviceConformance*/plain-*Capacity*:*NeverFit*:*Everything*", 80),
    ("memcheck", "kernel_cuda_test", "*-*Stray*", 40),
    ("memcheck", "stream_cuda_test", "*", 60),
    ("racecheck", "stream_cuda_test", "*", 60),
    ("initcheck", "kernel_cuda_test", "*SourceKernels*", 40),
]


class Step(NamedTuple):
    """Tests that are run before all others, in the order of STEPS."""

    what: str
    program: str
    tests: str  # as GoogleTest filters them
    environment: "dict[str, str]" = {}
    tool: str = ""  # of compute-sanitizer


STEP_SECONDS = 60.0
OF_STEPS = "device_cuda_steps_test"  # has nothing but steps
STEPS = [
    Step("the list of devices, without a context", "device_cuda_steps_test", "*ListingMakesNoContext*"),
    Step("plain conformance", "device_cuda_test", "*DeviceConformance*/plain"),
    Step("all conformance of devices", "device_cuda_test", "*DeviceConformance*-*DeviceConformance*/plain"),
    Step("all conformance of pools", "pool_cuda_test", "*"),
    Step("kernels", "kernel_cuda_test", "*-*Stray*"),
    Step("a coroutine that stands waiting", "device_cuda_test", "*WhileACoroutineStandsWaiting*:*WhileAnotherStandsWaiting*"),
    Step("a capture of the user's", "device_cuda_test", "*ACaptureOfTheUsersAndTheLibrarysWork*"),
    Step("a thread's own default stream", "device_cuda_test", "*AThreadsOwnDefaultStreamIsRefused*"),
    Step("order with one hardware queue", "device_cuda_steps_test", "*StreamsStayInOrderWhile*",
         environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    Step("write-combined pieces", "device_cuda_test", "*WriteCombinedMemory*", tool="memcheck"),
    Step("60,000 pinned pieces", "device_cuda_steps_test", "*SixtyThousandPinnedPieces*"),
    Step("a kernel that strays", "kernel_cuda_test", "*Stray*"),
    Step("growth to most of the memory", "device_cuda_steps_test", "*GrowToMostOfTheMemory*"),
]


class Row(NamedTuple):
    """A line of the table."""

    what: str
    result: str
    verdict: str  # "ok", "FAILED", "MISSED", "not run" or "-"
    seconds: float


def fail(message: str) -> None:
    sys.exit(f"dev gpu: {message}")


def newest_enough_cmake() -> str:
    """The first CMake of PATH that reads this project: a system's own is often older than the one beside it."""
    seen = []
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = Path(folder) / "cmake"
        if not os.access(program, os.X_OK):
            continue
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout.split()
        version = tuple(int(part) for part in said[2].split("-")[0].split(".")[:2]) if len(said) > 2 else (0, 0)
        if version >= OLDEST_CMAKE:
            return str(program)
        seen.append(f"{program} {'.'.join(map(str, version))}")
    fail(f"needs CMake {'.'.join(map(str, OLDEST_CMAKE))} or newer; there is {', '.join(seen) or 'none'}")
    raise AssertionError


def callers_python() -> "str | None":
    """The Python with CuPy and PyTorch in it: the first of PATH, which `./dev` leaves out of its own."""
    return shutil.which("python3", path=os.environ.get("UNIMEM_CALLER_PATH") or os.environ.get("PATH"))


def build(jobs: int) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    cmake = newest_enough_cmake()
    configure = [cmake, "-S", str(ROOT), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release", f"-DUNIMEM_CARRIED={CARRIED}",
                 "-DUNIMEM_BUILD_BENCHMARKS=ON", "-DUNIMEM_BUILD_EXAMPLES=OFF", "-DUNIMEM_INSTALL=OFF"]
    python = callers_python()
    if python:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CARRIED / "python"), os.environ.get("PYTHONPATH", "")]))
        configure += ["-DUNIMEM_BUILD_PYTHON=AUTO", f"-DUNIMEM_PYTHON_PROGRAM={python}"]
    if not (BUILD / "CMakeCache.txt").is_file():
        configure += ["-G", "Ninja" if shutil.which("ninja") else "Unix Makefiles"]
    compile_all = [cmake, "--build", str(BUILD), "-j", str(jobs), "--target", "hardware_suites", "bench_gpu", "product"]
    log = BUILD / "build.log"
    with log.open("w", encoding="utf-8") as told:
        for command in (configure, compile_all):
            if subprocess.run(command, stdout=told, stderr=subprocess.STDOUT, check=False).returncode != 0:
                told.flush()
                print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]), file=sys.stderr)
                fail(f"the build failed; all of it is in {log}")


def unpack_nvrtc() -> Path:
    folder = BUILD / "nvrtc"
    if not (folder / "libnvrtc.so.12").is_file():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(CARRIED / "nvrtc.zip") as packed:
            packed.extractall(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder / "libnvrtc.so.12"


def gpus() -> "list[dict[str, object]]":
    """The CUDA devices that the library sees; without any, says why and ends."""
    listed = json.loads(subprocess.run([str(BUILD / "unimem"), "devices", "--verbose", "--json"], capture_output=True, text=True,
                                       check=True, timeout=120).stdout)
    found = [device for device in listed["devices"] if device["backend"] == "cuda"]
    if not found:
        reasons = [one["reason"] for one in listed["unavailable"] if one["backend"] == "cuda"]
        fail(f"built, but there is no GPU to run on: {'; '.join(reasons) or 'no reason was told'}")
    return found


def compute_sanitizer() -> "str | None":
    places = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda", "/opt/cuda"]
    found = shutil.which("compute-sanitizer")
    for place in filter(None, places):
        found = found or shutil.which("compute-sanitizer", path=f"{place}/bin")
        found = found or shutil.which("compute-sanitizer", path=f"{place}/compute-sanitizer")
    return found


def suite_row(name: str, outcome: Outcome) -> Row:
    said = f"{len(outcome.passed)} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} not run"
    return Row(name, said, "ok" if outcome.green else "FAILED", outcome.seconds)


def wrapped(tool: str, name: str, log: Path) -> "list[str]":
    """compute-sanitizer before a program. Each call says of itself whether it was refused; looked for is what kernels do."""
    wrapper = [tool, "--tool", name, "--error-exitcode", "86", "--print-limit", "20", "--log-file", str(log)]
    return wrapper + (["--report-api-errors", "no"] if name == "memcheck" else [])


def step_row(step: Step, end: float, left_out: "list[str]", failures: "list[str]") -> Row:
    wrapper: "list[str]" = []
    if step.tool:
        tool = compute_sanitizer()
        if tool is None:
            left_out.append(f"{step.what}: compute-sanitizer is not installed here")
            return Row(step.what, "compute-sanitizer is not installed", "not run", 0)
        wrapper = wrapped(tool, step.tool, BUILD / f"step-{step.tool}.log")
    limit = min(STEP_SECONDS, end - time.monotonic())
    if limit < 5:
        return Row(step.what, "time was up", "FAILED", 0)
    before = {name: os.environ.get(name) for name in step.environment}
    os.environ.update(step.environment)
    try:
        outcome = run_suite(BUILD, step.program, limit, wrapper=wrapper, tests=step.tests)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    with (BUILD / "steps.log").open("a", encoding="utf-8") as log:
        log.write("\n".join([f"== {step.what}", *outcome.output]) + "\n")
    left_out += [f"{test}: {why}" for test, why in outcome.skipped.items()]
    failures += [f"{step.program}: {test}" for test in outcome.failed] + outcome.problems
    row = suite_row(step.what, outcome)
    if not outcome.passed and not outcome.failed and not outcome.problems and outcome.skipped:
        row = row._replace(verdict="not run")
    told = [line[len("step: "):] for line in outcome.output if line.startswith("step: ")]
    return row._replace(result="; ".join([row.result, *told]))


def left_of(program: str, steps_ran: bool) -> str:
    """What of a suite the steps have not run, as GoogleTest filters it; empty if that is nothing."""
    done = [step.tests.partition("-")[0] for step in STEPS if step.program == program and not step.tool] if steps_ran else []
    return "" if "*" in done or (steps_ran and program == OF_STEPS) else "*-" + ":".join(done) if done else "*"


def python_row(end: float, left_out: "list[str]") -> Row:
    """The bindings beside the libraries that compute on a GPU."""
    what, python, report = "python bindings", callers_python(), BUILD / "python_results.xml"
    if python is None or not list((BUILD / "python" / "unimem").glob("_unimem*.so")):
        left_out.append(f"{what}: not built; build.log says what was missing")
        return Row(what, "not built", "not run", 0)
    report.unlink(missing_ok=True)
    # Others' warnings are no failures here: their plugins' come from this environment, and not from the tests.
    command = [python, "-m", "pytest", "-q", "-p", "no:warnings", "-rs", f"--junitxml={report}", "python/tests/test_gpu.py"]
    paths = os.pathsep.join(filter(None, [str(BUILD / "python"), os.environ.get("PYTHONPATH", "")]))
    begin = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
                              check=False, timeout=max(5.0, min(120, end - begin)))
    except subprocess.TimeoutExpired:
        return Row(what, "time was up", "FAILED", time.monotonic() - begin)
    (BUILD / "python.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    seconds = time.monotonic() - begin
    if not report.is_file():
        said = (done.stderr.splitlines() or done.stdout.splitlines() or ["nothing was said"])[-1]
        left_out.append(f"{what}: {said}")
        return Row(what, "not started", "not run" if "No module named pytest" in said else "FAILED", seconds)
    [suite] = xml.etree.ElementTree.parse(report).getroot().iter("testsuite")
    failed, skipped = (sum(int(suite.get(name, 0)) for name in names) for names in (("failures", "errors"), ("skipped",)))
    passed = int(suite.get("tests", 0)) - failed - skipped
    left_out += [f"{what}: {line}" for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    verdict = "FAILED" if failed or done.returncode != 0 else "ok" if passed else "not run"
    if verdict == "FAILED":
        print(done.stdout[-4000:])
    return Row(what, f"{passed} passed, {failed} failed, {skipped} not run", verdict, seconds)


def sanitizer_rows(end: float, left_out: "list[str]") -> "list[Row]":
    tool = compute_sanitizer()
    if tool is None:
        left_out.append("compute-sanitizer: not installed here")
        return [Row("compute-sanitizer", "not installed", "not run", 0)]
    rows = []
    for name, program, tests, seconds in SANITIZED:
        log = BUILD / f"{name}-{program}.log"
        wrapper = wrapped(tool, name, log)
        limit = min(seconds, end - time.monotonic())
        if limit < 5:
            rows.append(Row(f"{name}: {program}", "time was up", "FAILED", 0))
            continue
        outcome = run_suite(BUILD, program, limit, wrapper=wrapper, tests=tests, restarts=0)
        row = suite_row(f"{name}: {program}", outcome)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        summary = [line.lstrip("= ") for line in lines if "SUMMARY" in line]
        if not summary and not outcome.passed:
            row = row._replace(result=f"did not run here: {(lines or outcome.output)[-1:]}", verdict="not run")
            left_out.append(f"{name} of {program}: the tool did not start; see {log}")
        elif summary:
            row = row._replace(result=f"{row.result}; {summary[-1]}")
        rows.append(row)
    return rows


def benchmark_rows(end: float, device: str) -> "list[Row]":
    report = BUILD / "bench_gpu.json"
    report.unlink(missing_ok=True)
    python = callers_python()
    command = [str(BUILD / "benchmarks" / "bench_gpu"), "--device", device, "--json", str(report)]
    if python:
        command += ["--python", python]
    limit = end - time.monotonic()
    if limit < 10:
        return [Row("benchmarks", "time was up", "FAILED", 0)]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return [Row("benchmarks", "time was up", "FAILED", time.monotonic() - begin)]
    if done.returncode != 0 or not report.is_file():
        return [Row("benchmarks", f"ended with {done.returncode}", "FAILED", time.monotonic() - begin)]
    rows = []
    for line in json.loads(report.read_text(encoding="utf-8"))["lines"]:
        verdict = {"met": "ok", "missed": "MISSED", "skipped": "not run"}.get(line["verdict"], "-")
        rows.append(Row(line["what"], line["result"], verdict, line["seconds"]))
    return rows


def print_table(rows: "list[Row]") -> "list[str]":
    """One line a row, as Markdown."""
    cells = [("what", "result", "", "s")]
    cells += [(row.what, row.result, row.verdict, f"{row.seconds:.0f}") for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n" + "\n".join(lines))
    return lines


def driver_version() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                              text=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        return ""
    return f", driver {said.stdout.split()[0]}" if said.returncode == 0 and said.stdout.split() else ""


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    building = parser.add_mutually_exclusive_group()
    building.add_argument("--build-only", action="store_true", help="end after the build, GPU or not")
    building.add_argument("--built", action="store_true", help="run what stands in build/gpu, such as was built elsewhere")
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part alone; may be given again")
    parser.add_argument("--seconds", type=float, default=470, help="how long all of it may take")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    end = begin + options.seconds
    for name in ("include/fmt/format.h", "include/boost/intrusive/list.hpp", "googletest/googletest/src/gtest-all.cc", "nvrtc.zip"):
        if not (CARRIED / name).is_file():
            fail(f"{CARRIED}/{name} is missing: run ./dev gpu --prepare where there is a network, and bring the folder along")
    if not options.built:
        print("== building without a network", file=sys.stderr, flush=True)
        build(int(os.environ.get("UNIMEM_JOBS") or os.cpu_count() or 1))
    parts = options.only or PARTS
    rows = [Row("build", platform.platform(terse=True), "ok", time.monotonic() - begin)]
    if options.build_only:
        print(f"built in {rows[0].seconds:.0f} s")
        return 0

    os.environ["UNIMEM_TEST_CUDA"] = "real"
    if platform.machine() == "x86_64":  # on others what is carried is none, and would hide the system's
        os.environ.setdefault("UNIMEM_NVRTC_LIBRARY", str(unpack_nvrtc()))
    os.environ.setdefault("UNIMEM_CACHE_DIR", str(BUILD / "kernels"))
    found = gpus()
    if len(found) > 1:
        os.environ.setdefault("UNIMEM_TEST_CUDA_SECOND", str(found[1]["id"]))
    title = f"{found[0]['name']}, {found[0]['driver']}{driver_version()}, {datetime.date.today().isoformat()}"
    print(f"== {title}", file=sys.stderr, flush=True)

    left_out: "list[str]" = []
    failures: "list[str]" = []
    suites = (BUILD / "hardware_suites.txt").read_text(encoding="utf-8").split()
    (BUILD / "steps.log").unlink(missing_ok=True)
    for step in STEPS if "steps" in parts else []:
        print(f"== {step.what}", file=sys.stderr, flush=True)
        rows.append(step_row(step, end, left_out, failures))
    for program in suites if "suites" in parts else []:
        tests = left_of(program, "steps" in parts)
        if not tests:
            continue
        print(f"== {program}", file=sys.stderr, flush=True)
        outcome = run_suite(BUILD, program, max(5.0, min(120, end - time.monotonic())), tests=tests)
        (BUILD / f"{program}.log").write_text("\n".join(outcome.output) + "\n", encoding="utf-8")
        rows.append(suite_row(program, outcome))
        left_out += [f"{test}: {why}" for test, why in outcome.skipped.items()]
        failures += [f"{program}: {test}" for test in outcome.failed] + outcome.problems
    if "python" in parts:
        print("== python", file=sys.stderr, flush=True)
        rows.append(python_row(end, left_out))
    if "sanitizers" in parts:
        # They have what the benchmarks leave.
        for_benchmarks = min(100.0, max(0.0, (end - time.monotonic()) / 2)) if "benchmarks" in parts else 0.0
        print("== sanitizers", file=sys.stderr, flush=True)
        rows += sanitizer_rows(end - for_benchmarks, left_out)
    if "benchmarks" in parts:
        print("== benchmarks", file=sys.stderr, flush=True)
        rows += benchmark_rows(end, str(found[0]["id"]))
    rows.append(Row("all of it", "", "-", time.monotonic() - begin))

    told = print_table(rows)
    for heading, entries in (("Not run", left_out), ("Failed", failures)):
        if entries:
            told += ["", f"{heading}:", ""] + [f"- {entry}" for entry in entries]
            print(f"\n{heading}:\n" + "\n".join(f"  {entry}" for entry in entries))
    (BUILD / "results.md").write_text(f"## {title}\n\n" + "\n".join(told) + "\n", encoding="utf-8")
    verdicts = {row.verdict for row in rows}
    if "FAILED" in verdicts:
        print("\nnot green")
        return 1
    print("\ngreen" + (", but not every speed was reached" if "MISSED" in verdicts else ""))
    return 3 if "MISSED" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
