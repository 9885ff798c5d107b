#!/usr/bin/python3
"""Finds the least capacity with which `unimem replay` completes each of some allocation logs, by bisection, and prints it beside
the most that the log had live, with what a run without a limit costs.

usage: tools/least_capacity.py [--unimem FILE] [--device ID] [--runs N] [--precision SHARE] [--json] LOG.csv...

Whether a log fits need not be monotone in the capacity: a pool may be luckier with less. What is found fits, and a little less,
by the precision (of the most live, default 0.001), does not.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path


def replay(unimem, device, log, capacity=None):
    command = [unimem, "replay", str(log), "--device", device, "--json"]
    if capacity is not None:
        command += ["--capacity", str(capacity)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"least_capacity: {done.stderr.strip() or f'{command} ended with {done.returncode}'}")
    return json.loads(done.stdout)


def least_capacity(completes, live, reserved, precision):
    """The least capacity for which `completes(capacity)`, to within `precision` bytes, given that `reserved` is enough; nothing
    fits into less than `live`."""
    low, high = live - 1, reserved
    while not completes(high):  # another run may be less lucky than the one that told how much it took
        low, high = high, high + max(high // 8, 1)
    if completes(live):
        return live
    low = max(low, live)
    while high - low > precision:
        middle = (low + high) // 2
        if completes(middle):
            high = middle
        else:
            low = middle
    return high


def measure(arguments, log):
    free = [replay(arguments.unimem, arguments.device, log) for _ in range(arguments.runs)]
    if not free[0]["completed"]:
        raise SystemExit(f"least_capacity: {log} does not fit into {arguments.device} at all")
    live = free[0]["peak_live_bytes"]
    reserved = max(run["peak_reserved_bytes"] for run in free)
    least = least_capacity(lambda bytes: replay(arguments.unimem, arguments.device, log, bytes)["completed"], live, reserved,
                           max(int(live * arguments.precision), 1)) if live else 0
    return {"log": Path(log).stem, "device": arguments.device, "operations": free[0]["operations"],
            "nanoseconds_per_operation": statistics.median(run["nanoseconds_per_operation"] or 0 for run in free),
            "hit_rate": statistics.median(run["hit_rate"] for run in free), "peak_live_bytes": live,
            "overhead": reserved / live if live else None, "least_capacity": least,
            "least_capacity_ratio": least / live if live else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unimem", default=str(Path(__file__).parent.parent / "build/release/unimem"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5, help="without a limit; times and hit rates are their medians")
    parser.add_argument("--precision", type=float, default=0.001)
    parser.add_argument("--json", action="store_true", help="one JSON object a log")
    parser.add_argument("logs", nargs="+", metavar="LOG.csv")
    arguments = parser.parse_args()
    if arguments.runs < 1 or not 0 < arguments.precision < 1:
        parser.error("--runs is at least 1, --precision between 0 and 1")
    if not arguments.json:
        print(f"{'log':20} {'operations':>10} {'ns/op':>8} {'hits':>6} {'live MiB':>10} {'overhead':>8} {'least':>7}")
    for log in arguments.logs:
        row = measure(arguments, log)
        if arguments.json:
            print(json.dumps(row), flush=True)
            continue
        ratio = lambda value: "-" if value is None else f"{value:.3f}"
        print(f"{row['log']:20} {row['operations']:10} {row['nanoseconds_per_operation']:8.0f} {row['hit_rate']:6.3f} "
              f"{row['peak_live_bytes'] / 2**20:10.1f} {ratio(row['overhead']):>8} {ratio(row['least_capacity_ratio']):>7}",
              flush=True)


if __name__ == "__main__":
    sys.exit(main())
