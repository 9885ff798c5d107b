#!/usr/bin/python3
"""Prints what `unimem run --kernel histogram --json` said on several devices, and insists that they agree.

    tools/compare_runs.py FILE RESULT.json RESULT.json...

Exit 1 unless every device counted the same bytes, all of FILE, and moved what it should: nothing where memory is shared with
the host, exactly the file where it is not.
"""

import json
import sys
from pathlib import Path

MEBI = 1 << 20


def check(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"compare_runs: {message}")


def main(arguments: "list[str]") -> None:
    file = Path(arguments[0])
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments[1:]]
    size = file.stat().st_size
    print(f"\n{file}: {size} bytes ({size / MEBI:.0f} MiB)\n")
    table = [["device", "GB/s", "seconds", "chunks", "to device", "to host", "peak on device", "entropy"]]
    for run in runs:
        table.append([run["device"], f"{run['gigabytes_per_second']:.2f}", f"{run['seconds']:.3f}", str(run["chunks"]),
                      f"{run['host_to_device_bytes'] / MEBI:.1f} MiB", f"{run['device_to_host_bytes'] / 1024:.1f} KiB",
                      f"{run['peak_device_bytes'] / MEBI:.1f} MiB", f"{run['result']['entropy_bits_per_byte']:.4f} b/B"])
    # As wide as what is in them: of a large file, the figures outgrow any width that was chosen before.
    widths = [max(map(len, column)) for column in zip(*table)]
    for device, *figures in table:
        cells = [device.ljust(widths[0])] + [figure.rjust(width) for figure, width in zip(figures, widths[1:])]
        print("  ".join(cells))
    first = runs[0]["result"]["histogram"]
    common = sorted(range(256), key=lambda value: -first[value])[:5]
    print("\nmost common bytes: " + ", ".join(f"0x{value:02x} {100 * first[value] / size:.1f} %" for value in common))
    for run in runs:
        device = run["device"]
        check(sum(run["result"]["histogram"]) == size, f"{device} counted {sum(run['result']['histogram'])} of {size} bytes")
        check(run["result"]["histogram"] == first, f"{device} and {runs[0]['device']} count differently")
        expected = 0 if device == "cpu" else size
        moved = run["host_to_device_bytes"]
        check(moved == expected, f"{moved} bytes moved to {device}, where {expected} had to")
    print(f"\nAll {len(runs)} devices agree, and every byte that moved is accounted for.")


if __name__ == "__main__":
    main(sys.argv[1:])
