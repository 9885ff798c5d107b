#!/usr/bin/python3
"""tools/compare_runs.py believes no device: it accepts runs that agree and counted everything, and nothing else."""

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import compare_runs  # noqa: E402

SIZE = 4096


def run(device: str, **changes: object) -> "dict[str, object]":
    histogram = [SIZE // 256] * 256
    return {"kernel": "histogram", "device": device, "bytes": SIZE, "chunks": 1, "seconds": 0.5, "gigabytes_per_second": 0.1,
            "result": {"histogram": histogram, "entropy_bits_per_byte": 8.0}, "peak_device_bytes": SIZE,
            "host_to_device_bytes": 0 if device == "cpu" else SIZE, "device_to_host_bytes": 0, **changes}


class CompareRuns(unittest.TestCase):
    def compare(self, *runs: "dict[str, object]") -> "str | None":
        """The complaint about these runs over a file of SIZE bytes, or None; `self.printed` is what was printed."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "data.bin"
            file.write_bytes(bytes(SIZE))
            names = []
            for number, one in enumerate(runs):
                names.append(f"{folder}/{number}.json")
                Path(names[-1]).write_text(json.dumps(one), encoding="utf-8")
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    compare_runs.main([str(file), *names])
            except SystemExit as complaint:
                return str(complaint.code)
            finally:
                self.printed = printed.getvalue()
            return None

    def test_runs_that_agree_are_accepted(self):
        self.assertIsNone(self.compare(run("cpu"), run("opencl:0")))

    def test_columns_are_apart_however_wide_their_values(self):
        wide = run("sim:memory=1GiB,latency=10us", seconds=123456789.5, chunks=1234567890, gigabytes_per_second=9876543.21,
                   device_to_host_bytes=10**15, peak_device_bytes=10**16)
        self.assertIsNone(self.compare(run("cpu"), run("opencl:0", **{key: wide[key] for key in ("seconds", "chunks")}),
                                       wide))
        lines = self.printed.splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("device"))
        table = [re.split(r" {2,}", line) for line in lines[first:first + 4]]
        self.assertEqual([len(row) for row in table], [8] * 4, lines)
        self.assertEqual(table[3][:4], ["sim:memory=1GiB,latency=10us", "9876543.21", "123456789.500", "1234567890"])
        self.assertEqual(len({len(line) for line in lines[first:first + 4]}), 1, "every row ends at the same column")

    def test_another_histogram_is_refused(self):
        other = [0] * 256
        other[7] = SIZE
        wrong = run("opencl:0", result={"histogram": other, "entropy_bits_per_byte": 0.0})
        self.assertIn("count differently", self.compare(run("cpu"), wrong) or "")

    def test_a_histogram_of_part_of_the_file_is_refused(self):
        part = run("cpu", result={"histogram": [1] * 256, "entropy_bits_per_byte": 8.0})
        self.assertIn("counted 256 of 4096", self.compare(part) or "")

    def test_a_byte_too_many_or_too_few_moved_is_refused(self):
        self.assertIn("moved to opencl:0", self.compare(run("cpu"), run("opencl:0", host_to_device_bytes=SIZE + 1)) or "")
        self.assertIn("moved to cpu", self.compare(run("cpu", host_to_device_bytes=1)) or "")


if __name__ == "__main__":
    unittest.main()
