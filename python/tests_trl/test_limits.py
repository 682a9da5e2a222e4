"""What happens if no groups with signal come."""

import json
import pickle
import unittest
from collections import Counter

import pyarrow.parquet
import torch
import trl
from toy import Case, Judge, alike, course

from tamis.trl import NothingKept


class LimitTests(Case):
    def test_nothing_kept(self):
        for kind in (trl.GRPOTrainer, trl.RLOOTrainer):
            with self.subTest(kind.__name__):
                trainer = self.sieved(cls=kind, rewards=alike, sieve={"schedule": {"max_num_gen_batches": 3}})
                before = [parameter.clone() for parameter in trainer.model.parameters()]
                with self.assertRaises(NothingKept) as raised:
                    self.fit(trainer)
                told = str(raised.exception)
                self.assertIn("12", told)
                self.assertIn("`train_dataset`", told)
                for name in ("data.", "rollout.", "use_partial", "scored at the start"):
                    self.assertNotIn(name, told)
                self.assertEqual(raised.exception.diagnosis["text"], told)
                again = pickle.loads(pickle.dumps(raised.exception))
                self.assertEqual((str(again), again.diagnosis), (told, raised.exception.diagnosis))
                self.assertEqual(course(trainer), [])
                for parameter, then in zip(trainer.model.parameters(), before, strict=True):
                    self.assertTrue(torch.equal(parameter, then))
                # As if the batch had not been begun.
                self.assertEqual((trainer.sieve.state()["epoch"], trainer.sieve.state()["place"]), (0, 0))
                self.assertEqual(trainer.sieve.totals["generated"]["groups"], 0)

    def test_data_without_signal_end_without_a_limit(self):
        judge = Judge()
        trainer = self.sieved(
            rewards=[judge, alike], reward_weights=[0.0, 1.0], sieve={"schedule": {"max_num_gen_batches": None}}
        )
        with self.assertRaises(NothingKept):
            self.fit(trainer)
        self.assertEqual(sorted(judge.rows[:64]), list(range(64)))
        self.assertLess(len(judge.rows), 128)

    def test_dropped_groups_fill_a_batch(self):
        trainer = self.fit(
            self.sieved(
                sieve={"schedule": {"max_num_gen_batches": 1, "on_limit": "keep_dropped", "mode": "rounds"}},
                max_steps=6,
            )
        )
        lines = [line for line in trainer.state.log_history if "loss" in line]
        totals = trainer.sieve.totals
        self.assertEqual(totals["trained"]["groups"] + totals["kept_when_insufficient"]["groups"], 24)
        self.assertGreater(totals["kept_when_insufficient"]["groups"], 0)
        # TRL's figure counts groups without signal, such as a dropped one.
        without_signal = sum(4 * line["frac_reward_zero_std"] for line in lines)
        self.assertEqual(without_signal, totals["kept_when_insufficient"]["groups"])
        self.assert_adds_up(trainer)

    def test_what_fills_a_batch_is_counted_whole(self):
        self.needs("1.6.0", "members that are left out, for it takes their reward for 0")

        def some(completions, want, **_):
            texts = zip(want, completions, strict=True)
            return [float(digit in text) if place % 4 else None for place, (digit, text) in enumerate(texts)]

        trainer = self.fit(
            self.sieved(
                rewards=some,
                sieve={
                    "schedule": {"max_num_gen_batches": 1, "on_limit": "keep_dropped", "mode": "rounds"},
                    "record": self.folder / "record",
                },
            )
        )
        totals = trainer.sieve.totals
        kept, filling = totals["trained"]["groups"], totals["kept_when_insufficient"]["groups"]
        self.assertGreater(min(kept, filling), 0)
        self.assertEqual(totals["left_out"]["trajectories"], kept)
        self.assertEqual(totals["kept_when_insufficient"]["trajectories"], 4 * filling)
        verdicts = Counter()
        for file in (self.folder / "record" / "rollouts").iterdir():
            verdicts.update(pyarrow.parquet.read_table(file)["verdict"].to_pylist())
        for verdict, number in (("trained", 3 * kept), ("unscored", kept), ("kept_when_insufficient", 4 * filling)):
            self.assertEqual(verdicts[verdict], number, verdict)
        lines = [json.loads(line) for line in (self.folder / "record" / "metrics.jsonl").read_text().splitlines()]
        # The filter's reasons are also those of the groups that fill the batch.
        reasons = sum(line[name] for line in lines for name in line if name.startswith("train/num_dropped/"))
        self.assertEqual(reasons, totals["dropped"]["groups"] + filling)
        self.assert_adds_up(trainer)

    def test_a_batch_that_keeps_nothing_is_tried_again(self):
        class Late(Judge):
            def __call__(self, **keywords):
                right = super().__call__(**keywords)
                return right if len(self.asked) > 32 else [1.0] * len(right)

        late = Late()
        trainer = self.fit(
            self.sieved(
                rewards=late,
                sieve={"schedule": {"max_num_gen_batches": 1, "on_limit": "keep_dropped", "mode": "rounds"}},
                max_steps=1,
            )
        )
        line = trainer.state.log_history[0]
        self.assertEqual(len(late.asked), 16 * line["train/num_gen_batches"])
        self.assertGreater(line["train/num_gen_batches"], 2)
        self.assertEqual(line["groups/generated"], trainer.sieve.totals["generated"]["groups"])
        self.assertEqual(line["groups/dropped"], trainer.sieve.totals["dropped"]["groups"])
        dropped = line["groups/dropped"] + trainer.sieve.totals["kept_when_insufficient"]["groups"]
        self.assertAlmostEqual(line["train/filter_rate"], dropped / line["groups/generated"])
        self.assert_adds_up(trainer)

    def test_copies_fill_a_batch(self):
        judge = Judge()
        trainer = self.fit(
            self.sieved(
                rewards=judge,
                sieve={"schedule": {"max_num_gen_batches": 1, "on_limit": "duplicate", "mode": "rounds"}},
                log_completions=True,
                num_completions_to_print=0,
                max_steps=6,
            )
        )
        import pandas

        self.assertEqual(len(course(trainer)), 6)
        copies = 0
        for step in range(1, 7):
            table = pandas.read_parquet(self.folder / "out" / "completions" / f"completions_{step:05}.parquet")
            self.assertEqual(len(table), 16)
            copies += 4 - table["prompt"].nunique()
            for line in table.itertuples():
                self.assertNotEqual(line.advantage, 0)
        self.assertGreater(copies, 0)
        self.assertEqual(trainer.sieve.totals["trained"]["groups"] + copies, 24)
        self.assertEqual(len(judge.asked), trainer.sieve.totals["generated"]["trajectories"])
        self.assert_adds_up(trainer)

    def test_an_error_of_a_reward_loses_no_prompt(self):
        class Failing(Judge):
            def __call__(self, *, log_extra, row, **keywords):
                log_extra("row_of_it", list(row))
                if len(self.asked) == 48 and not self.failed:
                    self.failed = True
                    raise ConnectionError("the judge is away")
                return super().__call__(row=row, **keywords)

        failing, judge = Failing(), Judge()
        failing.failed = False
        keywords = {"mode": "rounds"}
        trainer = self.sieved(
            rewards=failing, sieve={"schedule": keywords}, log_completions=True, num_completions_to_print=0
        )
        with self.assertRaises(ConnectionError):
            self.fit(trainer)
        place = trainer.sieve.state()["place"]
        failing.asked = failing.asked[: 4 * place]
        self.fit(trainer)
        # The same prompts as without the error: those of the batch that failed come again.
        self.fit(self.sieved(rewards=judge, sieve={"schedule": keywords}, max_steps=8))
        self.assertEqual(failing.rows, judge.rows[: len(failing.rows)])
        self.assert_adds_up(trainer)


if __name__ == "__main__":
    unittest.main()
