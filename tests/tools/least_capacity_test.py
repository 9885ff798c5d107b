#!/usr/bin/python3
"""tools/least_capacity.py finds the least capacity to within its precision, and gives up on what never fits."""

import contextlib
import io
import json
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import least_capacity  # noqa: E402

# Stands in for the command line: a log is a file with the capacity it needs.
STAND_IN = """#!/usr/bin/python3
import json, sys
words = sys.argv[1:]
assert words[0] == "replay" and words[2:5] == ["--device", "sim", "--json"], words
needs = int(open(words[1]).read())
if needs < 0:
    print("unimem: it is no log", file=sys.stderr)
    sys.exit(1)
fits = len(words) == 5 or int(words[6]) >= needs
print(json.dumps({"operations": 7, "completed": fits, "nanoseconds_per_operation": 100.0, "peak_live_bytes": 1000000,
                  "peak_reserved_bytes": 1500000, "hit_rate": 0.5}))
"""


class LeastCapacity(unittest.TestCase):
    def test_bisection_ends_within_the_precision_above_what_is_needed(self):
        for needed in (1000, 1001, 1250, 1999, 2000):
            found = least_capacity.least_capacity(lambda size: size >= needed, 1000, 2000, 10)
            self.assertTrue(needed <= found <= needed + 10, (needed, found))
            exact = least_capacity.least_capacity(lambda size: size >= needed, 1000, 2000, 1)
            self.assertEqual(exact, needed)

    def test_more_than_was_reserved_is_tried_where_that_is_not_enough(self):
        self.assertEqual(least_capacity.least_capacity(lambda size: size >= 2500, 1000, 2000, 1), 2500)

    def run_tool(self, needs, *options):
        with tempfile.TemporaryDirectory() as folder:
            stand_in = Path(folder) / "unimem"
            stand_in.write_text(STAND_IN)
            stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
            log = Path(folder) / "log.csv"
            log.write_text(str(needs))
            output = io.StringIO()
            with mock.patch.object(sys, "argv", ["least_capacity.py", "--unimem", str(stand_in), "--device", "sim", *options,
                                                 str(log)]), contextlib.redirect_stdout(output):
                least_capacity.main()
            return output.getvalue()

    def test_a_log_is_a_row(self):
        row = json.loads(self.run_tool(1_200_000, "--json", "--precision", "0.000001"))
        self.assertEqual(row["least_capacity"], 1_200_000)
        self.assertEqual(row["least_capacity_ratio"], 1.2)
        self.assertEqual(row["overhead"], 1.5)
        self.assertEqual(row["hit_rate"], 0.5)
        lines = self.run_tool(1_200_000).splitlines()
        self.assertEqual(len(lines), 2)
        self.assertEqual(lines[1].split()[:2], ["log", "7"])

    def test_a_log_that_is_refused_ends_it_with_the_reason(self):
        with self.assertRaisesRegex(SystemExit, "it is no log"):
            self.run_tool(-1)


if __name__ == "__main__":
    unittest.main()
