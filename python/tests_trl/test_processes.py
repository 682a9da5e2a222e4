"""Two processes by torchrun: both decide alike, each trains on its share, and rows stay together."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from toy import data

HERE = Path(__file__).resolve().parent
WANTED = data()["want"]


class ProcessTests(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        launch = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "2",
        ]
        done = subprocess.run(
            [*launch, HERE / "gloo_trainer.py", cls.folder],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        cls.ranks = [json.loads((cls.folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]

    def results(self, scenario):
        found = [rank[scenario] for rank in self.ranks]
        for rank in found:
            self.assertNotIn("failed", rank, rank.get("failed"))
        return found

    def check_alike(self, one, other):
        for name in ("weights", "totals", "state", "course"):
            self.assertEqual(one[name], other[name], name)
        totals = {name: counts["groups"] for name, counts in one["totals"].items() if name != "duplicated"}
        self.assertEqual(totals.pop("generated"), sum(totals.values()))

    def check_shape(self, scenario, group, size):
        one, other = self.results(scenario)
        self.check_alike(one, other)
        self.assertGreater(one["totals"]["dropped"]["groups"], 0)
        for rank in (one, other):
            self.assertTrue(rank["seen"])
            for row, answer, advantage in (member for batch in rank["seen"] for member in batch):
                self.assertEqual(advantage > 0, WANTED[row] in answer, (row, answer))
                self.assertNotEqual(advantage, 0)
        for micro in zip(one["seen"], other["seen"], strict=True):
            self.assertEqual([len(batch) for batch in micro], [size, size])
        trained = Counter(row for rank in (one, other) for batch in rank["seen"] for row, _, _ in batch)
        self.assertEqual({count % group for count in trained.values()}, {0})
        num_judged = len(one["asked"]) + len(other["asked"])
        for table in one["table"]:
            self.assertTrue(table)
            for line in table:
                self.assertEqual(line["prompt"], f"q{line['row_of_it']:03}:")
                self.assertEqual(line["digit"], float(WANTED[line["row_of_it"]] in line["completion"]))
                self.assertIn(line.get("text_of_it"), (None, line["completion"]))
        return num_judged - one["totals"]["generated"]["trajectories"]

    def test_whole_groups(self):
        self.assertEqual(self.check_shape("whole groups", 4, 8), 0)

    def test_split_groups(self):
        self.assertEqual(self.check_shape("split groups", 4, 2), 0)

    def test_groups_that_do_not_divide(self):
        # Each round is padded to as many rows for both; the rows in excess are not counted.
        self.assertGreater(self.check_shape("odd groups", 3, 9), 0)

    def test_several_steps_of_a_batch(self):
        self.assertEqual(self.check_shape("inside a batch", 4, 4), 0)

    def test_keep_all(self):
        for scenario in ("keep all, whole groups", "keep all, split groups"):
            for rank in self.results(scenario):
                self.assertEqual(rank["alone"], rank["sieved"], scenario)

    def test_resume_inside_a_batch(self):
        for rank in self.results("resume"):
            self.check_alike(rank["whole"], rank["halves"])
            self.assertEqual(rank["whole"]["asked"], rank["halves"]["asked"])
        one, other = self.results("resume")
        self.check_alike(one["halves"], other["halves"])

    def test_all_refuse_what_one_refuses(self):
        for rank in self.results("refused"):
            self.assertEqual(rank["error"], "AttachError")
            self.assertIn("tamis_sieve_1.pt", rank["text"])
        for rank in self.results("used folder"):
            self.assertEqual(rank["error"], "AttachError")
            self.assertIn("has a run already", rank["text"])
        for rank in self.results("file as folder"):
            self.assertEqual(rank["error"], "AttachError")
            self.assertIn("cannot be continued", rank["text"])

    def test_all_end_if_one_cannot_write(self):
        one, other = self.results("full disk")
        for rank in (one, other):
            self.assertEqual(rank["error"], "OSError")
            self.assertIn("step 2 cannot be written", rank["text"])
            self.assertEqual(rank["totals"]["trained"]["groups"], 4)
        self.check_alike(one, other)

    def test_nothing_kept(self):
        one, other = self.results("nothing kept")
        self.assertEqual(one, other)
        self.assertEqual((one["error"], one["place"]), ("NothingKept", 0))

    def test_record_has_the_rows_of_both(self):
        import pyarrow.parquet

        one, other = self.results("odd groups")
        asked = Counter((row, answer) for rank in (one, other) for row, answer in rank["asked"])
        count = 0
        for file in (self.folder / "odd groups" / "record" / "rollouts").iterdir():
            for line in pyarrow.parquet.read_table(file).to_pylist():
                count += 1
                self.assertEqual(line["prompt"], f"q{line['prompt_id']:03}:")
                self.assertEqual(line["digit"], float(WANTED[line["prompt_id"]] in line["completion"]))
                self.assertGreater(asked[line["prompt_id"], line["completion"]], 0)
        self.assertEqual(count, one["totals"]["generated"]["trajectories"])


if __name__ == "__main__":
    unittest.main()
