"""The benchmarks with TRL: one at a small size, and what the other makes of its measurements."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench/trl_attach.py"
HEAD_TO_HEAD = BENCH.with_name("head_to_head.py")
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
        # No answer to a product is ever right, and products are most prompts.
        self.assertGreater(plain["uniform"], plain["groups"] / 2)
        totals = attach["totals"]
        self.assertEqual(totals["trained"], UPDATES * GROUPS)
        self.assertEqual(totals["generated"], attach["groups"])
        self.assertEqual(totals["dropped"], attach["uniform"])
        self.assertEqual(totals["generated"], totals["trained"] + totals["dropped"] + totals["surplus"])
        self.assertIn(f"({UPDATES} updates, {plain['groups'] * N:,} completions", done.stdout)
        self.assertIn(f"({UPDATES} updates, {attach['groups'] * N:,} completions", done.stdout)


class HeadToHeadTests(unittest.TestCase):
    """The results from measurements; the measured runs themselves take hours."""

    def setUp(self):
        spec = importlib.util.spec_from_file_location("head_to_head", HEAD_TO_HEAD)
        self.bench = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.bench)

    def test_points_of_a_run(self):
        # The process takes a second of the processor each second; a check takes 3.
        samples = types.SimpleNamespace(at=lambda moment: moment)
        rows = {
            step: {
                "train/num_loss_tokens": 50.0,
                "tokens/generated": 70.0,
                "groups/generated": 6.0,
                "timing_s/testing": 3.0,
                "val-core/x/acc": step / 10,
            }
            for step in (1, 2, 3, 4)
        }
        n = self.bench.SHARED["n"]
        self.assertEqual(
            self.bench.points_of(rows, {2: 23.0, 4: 46.0}, samples),
            [
                {"step": 2, "processor": 20.0, "tokens": 140, "completions": 12 * n, "accuracy": 0.2},
                {"step": 4, "processor": 40.0, "tokens": 280, "completions": 24 * n, "accuracy": 0.4},
            ],
        )
        for row in rows.values():
            del row["tokens/generated"], row["groups/generated"]
        last = self.bench.points_of(rows, {4: 46.0}, samples)[-1]
        self.assertEqual((last["tokens"], last["completions"]), (200, 4 * self.bench.SHARED["groups"] * n))

    def test_table(self):
        def point(accuracy, step):
            spent = {"processor": 10.4 * step, "tokens": 1000 * step, "completions": 8}
            return {"step": step, **spent, "accuracy": accuracy}

        with tempfile.TemporaryDirectory() as folder:
            given = types.SimpleNamespace(target=0.45, every=2, steps=16, threads=1, results=Path(folder, "lines"))
            own = self.bench.conditions(given)
            lines = [
                {"arm": "tamis", "seed": 1, "conditions": own, "points": [point(0.3, 2), point(0.5, 4)]},
                {"arm": "tamis", "seed": 2, "conditions": own, "points": [point(0.45, 2)]},
                {"arm": "tamis", "seed": 3, "conditions": own, "points": [point(0.5, 6)]},
                {"arm": "TRL", "seed": 1, "conditions": own, "points": [point(0.4, 2), point(0.3, 16)]},
                # It has another target, so it is in no table of this one.
                {"arm": "TRL", "seed": 2, "conditions": own | {"target": 0.4}, "points": [point(0.9, 2)]},
            ]
            given.results.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            self.assertEqual(set(self.bench.measured(given)), {("tamis", 1), ("tamis", 2), ("tamis", 3), ("TRL", 1)})
            printed = list(self.bench.table(given))
        self.assertEqual(
            printed[2:4],
            [
                "| tamis | 42 (42; 21; 62) | 4,000 (4,000; 2,000; 6,000) | 8 (8; 8; 8) | 4 (4; 2; 6) |",
                "| TRL | - | - | - | -; not in 16 steps: best 40%, 166 s |",
            ],
        )
        self.assertEqual(len(printed), 5)


if __name__ == "__main__":
    unittest.main()
