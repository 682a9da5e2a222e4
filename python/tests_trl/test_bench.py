"""bench/trl_attach.py at a small size: it runs, and what it prints is what was generated and trained on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench/trl_attach.py"
UPDATES, GROUPS, N = 2, 16, 8


class BenchTests(unittest.TestCase):
    def test_small(self):
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder, "results.jsonl")
            command = [
                sys.executable,
                "-W",
                "ignore",
                BENCH,
                "--small",
                "--tasks",
                "hopeless",
                "--updates",
                str(UPDATES),
            ]
            done = subprocess.run([*command, "--results", results], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            plain, attach = (json.loads(line) for line in results.read_text().splitlines())
        self.assertEqual([row["arm"] for row in (plain, attach)], ["plain", "attach"])
        for row in (plain, attach):
            self.assertEqual([point["step"] for point in row["points"]], list(range(UPDATES + 1)))
            self.assertEqual(row["points"][-1]["completions"], row["groups"] * N)
            self.assertEqual(row["points"][0]["accuracy"], plain["points"][0]["accuracy"])
        self.assertEqual(plain["groups"], UPDATES * GROUPS)
        # Of the products no answer is ever right, and they are most prompts.
        self.assertGreater(plain["uniform"], plain["groups"] / 2)
        totals = attach["totals"]
        self.assertEqual(totals["trained"], UPDATES * GROUPS)
        self.assertEqual(totals["generated"], attach["groups"])
        self.assertEqual(totals["dropped"], attach["uniform"])
        self.assertEqual(totals["generated"], totals["trained"] + totals["dropped"] + totals["surplus"])
        self.assertIn(f"({UPDATES} updates, {plain['groups'] * N:,} completions", done.stdout)
        self.assertIn(f"({UPDATES} updates, {attach['groups'] * N:,} completions", done.stdout)


if __name__ == "__main__":
    unittest.main()
