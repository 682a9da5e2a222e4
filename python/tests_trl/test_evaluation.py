"""Evaluation is TRL's own: nothing is filtered, and no prompt of the training data is used up."""

import unittest

from toy import KEEP_ALL, Case, Judge, data


class EvaluationTests(Case):
    SETTINGS = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "eval_on_start": True,
        "per_device_eval_batch_size": 4,
        "num_generations_eval": 2,
        "max_steps": 3,
    }

    def lines(self, trainer):
        return [
            {name: value for name, value in line.items() if "time" not in name and "per_second" not in name}
            for line in trainer.state.log_history
            if any(name.startswith("eval_") for name in line)
        ]

    def test_same_figures_as_without(self):
        trainers = [
            self.fit(make(eval_dataset=data(8), **self.SETTINGS))
            for make in (self.trainer, lambda **k: self.sieved(KEEP_ALL, **k))
        ]
        alone, sieved = map(self.lines, trainers)
        self.assertEqual(len(alone), 4)
        self.assertEqual(alone, sieved)
        self.assert_same_training(*trainers)

    def test_nothing_is_filtered_or_used_up(self):
        with_evaluation, without = Judge(), Judge()
        shown = (
            data(8)
            .select_columns(["prompt", "want", "row"])
            .map(lambda row: {"row": row["row"] + 500, "prompt": f"q{row['row'] + 500}:"})
        )
        one = self.fit(self.sieved(rewards=with_evaluation, eval_dataset=shown, **self.SETTINGS))
        two = self.fit(self.sieved(rewards=without, max_steps=1))
        evaluated = [row for row, _ in with_evaluation.asked if row >= 500]
        # Before training and after each of three steps: eight prompts, two answers each.
        self.assertEqual(len(evaluated), 4 * 16)
        self.assertEqual({evaluated.count(row) for row in range(500, 508)}, {8})
        trained = [row for row, _ in with_evaluation.asked if row < 500]
        self.assertEqual(len(trained), one.sieve.totals["generated"]["trajectories"])
        first = [row for row, _ in without.asked][:16]
        self.assertEqual(trained[: len(first)], first)
        self.assertGreater(one.sieve.totals["dropped"]["groups"], 0)
        self.assert_adds_up(one)
        for line in self.lines(one):
            self.assertFalse([name for name in line if "groups/" in name or "sieve/" in name])
        self.assertEqual(two.sieve.totals["trained"]["groups"], 4)

    def test_alone_after_training(self):
        judge = Judge()
        trainer = self.fit(self.sieved(rewards=judge, eval_dataset=data(8), per_device_eval_batch_size=4))
        before, place = len(judge.asked), trainer.sieve.state()
        trainer.evaluate()
        self.assertEqual(len(judge.asked) - before, 32)
        self.assertEqual(trainer.sieve.state(), place)


if __name__ == "__main__":
    unittest.main()
