"""The number by which a group is judged: weights, members without a reward, other metrics, other filters."""

import asyncio
import itertools
import unittest

import torch
import trl
from toy import Case, alike, digit, noise, seeing, text_of

import tamis.trl
from tamis.trl import NothingKept


def advantages(trainer):
    """The rows that the loss saw."""
    return [advantage for _, _, advantage in itertools.chain(*trainer.seen)]


class WeightTests(Case):
    def test_function_of_weight_zero_makes_no_signal(self):
        trainer = self.fit(self.sieved(cls=seeing(), rewards=[noise, digit], reward_weights=[0.0, 1.0]))
        self.assertNotIn(0, advantages(trainer))
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        self.assertIn("noise", trainer.reward_func_names)
        # With a weight the same function makes every group differ.
        weighted = self.fit(self.sieved(rewards=[noise, digit], reward_weights=[0.1, 1.0]))
        self.assertEqual(weighted.sieve.totals["dropped"]["groups"], 0)

    def test_metric_is_a_function(self):
        trainer = self.fit(self.sieved(cls=seeing(), sieve={"metric": "digit"}, rewards=[noise, digit]))
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        self.assertEqual(trainer.sieve.settings["metric"], "digit")

    def test_metric_is_a_length(self):
        trainer = self.fit(self.sieved(sieve={"metric": "length"}, rewards=alike))
        # Answers that all reached the token limit have the same length.
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        self.assertEqual(trainer.state.log_history[0]["frac_reward_zero_std"], 1)

    def test_metric_of_the_filter(self):
        trainer = self.fit(self.sieved({"kind": "variance", "metric": "digit"}, rewards=[noise, digit]))
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)

    def test_asynchronous_functions(self):
        asked = []

        async def later(completions, want, row, **_):
            await asyncio.sleep(0)
            asked.extend(row)
            return [float(wanted in text_of(text)) for wanted, text in zip(want, completions, strict=True)]

        trainer = self.fit(self.sieved(cls=seeing(), rewards=later))
        self.assertEqual(len(asked), trainer.sieve.totals["generated"]["trajectories"])
        self.assertNotIn(0, advantages(trainer))
        self.assert_adds_up(trainer)


class UnscoredTests(Case):
    def test_members_without_a_reward(self):
        self.needs("1.6.0", "members that are left out, for it takes their reward for 0")
        for missing in (None, float("nan")):
            with self.subTest(missing):

                def some(completions, want, missing=missing, **_):
                    texts = map(text_of, completions)
                    return [
                        missing if len(text) < 7 else float(digit in text)
                        for digit, text in zip(want, texts, strict=True)
                    ]

                trainer = self.fit(self.sieved(cls=seeing(), rewards=some))
                totals = trainer.sieve.totals
                wanted = trainer.train_dataset["want"]
                idle = 0
                for row, answer, advantage in itertools.chain(*trainer.seen):
                    if len(answer) < 7:
                        idle += 1
                        self.assertEqual(advantage, 0)
                    else:
                        self.assertEqual(advantage > 0, wanted[row] in answer)
                        self.assertNotEqual(advantage, 0)
                self.assertGreater(idle, 0)
                self.assertEqual(totals["left_out"]["trajectories"], idle)
                self.assertEqual(totals["trained"]["trajectories"] + idle, 48)
                self.assert_adds_up(trainer)

    def test_nobody_answers(self):
        def none(completions, **_):
            return [None] * len(completions)

        with self.assertRaisesRegex(NothingKept, "unscored"):
            self.fit(self.sieved(rewards=none))

    def test_answers_of_weight_zero_do_not_count(self):
        def none(completions, **_):
            return [None] * len(completions)

        with self.assertRaisesRegex(NothingKept, "unscored"):
            self.fit(self.sieved(rewards=[none, noise], reward_weights=[1.0, 0.0]))

    def test_truncated_completions(self):
        class Masking(seeing()):
            def _compute_loss(self, model, inputs):
                self.bears = [*getattr(self, "bears", []), *inputs["completion_mask"].any(dim=1).tolist()]
                return super()._compute_loss(model, inputs)

        trainer = self.fit(
            self.sieved(cls=Masking, mask_truncated_completions=True, max_completion_length=24, temperature=1.2)
        )
        totals = trainer.sieve.totals
        self.assertGreater(totals["left_out"]["trajectories"], 0)
        self.assertEqual(totals["trained"]["trajectories"] + totals["left_out"]["trajectories"], 48)
        wanted = trainer.train_dataset["want"]
        groups: dict = {}
        for (row, answer, _), bears in zip(itertools.chain(*trainer.seen), trainer.bears, strict=True):
            groups.setdefault(row, set())
            if bears:
                groups[row].add(wanted[row] in answer)
        self.assertEqual(trainer.bears.count(False), totals["left_out"]["trajectories"])
        for answers in groups.values():
            # The members in the loss differ within each group.
            self.assertEqual(answers, {True, False})
        self.assert_adds_up(trainer)


class SumTests(unittest.TestCase):
    def test_equal_sums_of_different_parts(self):
        weights = torch.tensor([0.1, 0.6, 0.7, 0.0])
        rewards = torch.tensor([[1.0, 1.0, 0.0, 5.0], [0.0, 0.0, 1.0, 6.0]])
        # In floats of 32 bits they differ.
        self.assertNotEqual(*(rewards * weights).sum(dim=1).tolist())
        self.assertEqual(tamis.trl.rows.weighted_sums(rewards, weights), [0.7, 0.7])

    def test_small_and_large_differences_are_kept(self):
        for one, other in ((1.0, 1.00001), (12345678.0, 12345679.0), (0.1, 0.10001), (1e-9, 2e-9)):
            sums = tamis.trl.rows.weighted_sums(torch.tensor([[one], [other]]), torch.tensor([1.0]))
            self.assertLess(*sums)

    def test_infinities(self):
        inf = float("inf")
        rewards = torch.tensor([[inf, -inf], [inf, 1.0], [0.0, -inf]])
        self.assertEqual(str(tamis.trl.rows.weighted_sums(rewards, torch.ones(2))), "[nan, inf, -inf]")

    def test_what_is_missing(self):
        nan = float("nan")
        rewards = torch.tensor([[1.0, nan], [nan, 2.0], [nan, nan]])
        self.assertEqual(tamis.trl.rows.weighted_sums(rewards, torch.tensor([0.5, 2.0]))[:2], [0.5, 4.0])
        self.assertEqual(str(tamis.trl.rows.weighted_sums(rewards, torch.tensor([0.5, 0.0]))), "[0.5, nan, nan]")


class NormalizedSumTests(unittest.TestCase):
    def is_kept(self, rewards, weights=(1.0, 1.0)):
        sums = tamis.trl.rows.normalized_sums(torch.tensor(rewards), torch.tensor(weights))
        return tamis.Filter("variance").judge([sums])[0].kept

    def test_what_cancels_out_does_so_for_every_size(self):
        for n in range(2, 17):
            for right in range(1, n):
                column = [1.0] * right + [0.0] * (n - right)
                for weight in (1.0, 1e-6, 7e6):
                    with self.subTest(n=n, right=right, weight=weight):
                        self.assertFalse(self.is_kept([[value, 1 - value] for value in column], [weight, weight]))
        for step in (0.1, 1 / 3, 1 / 7):
            self.assertFalse(self.is_kept([[step * i, 1 - step * i] for i in range(4)]), step)

    def test_what_does_not_cancel_out(self):
        self.assertTrue(self.is_kept([[1.0, 0.0], [0.0, 0.5], [0.0, 1.0]]))
        self.assertTrue(self.is_kept([[1.0, 0.0], [0.0, 1.0], [0.0, 0.999]]))
        for scale in (1.0, 1e-6, 7e6):
            self.assertTrue(self.is_kept([[1.0, 0.0], [0.0, 1.0]], [scale, 0.5 * scale]), scale)


class AggregationTests(Case):
    def test_sums_of_what_is_normalized(self):
        def other(completions, want, **_):
            return [
                -right if len(text_of(text)) > 7 else -2 * right
                for text, right in zip(completions, digit(completions, want))
            ]

        # The sum that TRL computes is judged: rewards, or rewards in units of their own deviation.
        for aggregation, function in (("sum_then_normalize", digit), ("normalize_then_sum", other)):
            with self.subTest(aggregation):
                trainer = self.fit(
                    self.sieved(rewards=[digit, function], multi_objective_aggregation=aggregation, max_steps=2)
                )
                self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
                self.assert_adds_up(trainer)

    def test_equal_sums_with_signal(self):
        def coarse(completions, want, **_):
            return [1.0 - right for right in digit(completions, want)]

        # Their sum is 1 for every answer. In units of their deviation they cancel out as well, unless weights
        # differ.
        for aggregation, weights, is_kept in (
            ("sum_then_normalize", [1.0, 1.0], False),
            ("normalize_then_sum", [1.0, 1.0], False),
            ("normalize_then_sum", [1.0, 0.5], True),
        ):
            with self.subTest(aggregation, weights=weights):
                trainer = self.sieved(
                    rewards=[digit, coarse],
                    reward_weights=weights,
                    multi_objective_aggregation=aggregation,
                    max_steps=1,
                    sieve={"schedule": {"max_num_gen_batches": 4}},
                )
                if is_kept:
                    self.fit(trainer)
                else:
                    with self.assertRaises(NothingKept):
                        self.fit(trainer)


class FilterTests(Case):
    def test_members_that_are_not_chosen_bear_no_loss(self):
        """They are outside the group's statistics too: the advantages of those that were chosen add up to 0."""
        self.needs("1.6.0", "members that are left out, for it takes their reward for 0")
        for kind, settings in (
            ("GRPOTrainer", {}),
            ("GRPOTrainer", {"scale_rewards": "none"}),
            ("GRPOTrainer", {"beta": 0.1}),
            ("RLOOTrainer", {}),
        ):
            with self.subTest(kind, **settings):
                filter = {"kind": "within_group", "k": 2}
                trainer = self.fit(self.sieved(filter, cls=seeing(getattr(trl, kind)), rewards=noise, **settings))
                totals = trainer.sieve.totals
                self.assertEqual(totals["trained"]["trajectories"], 24)
                self.assertEqual(totals["left_out"]["trajectories"], 24)
                groups: dict = {}
                for row, answer, advantage in itertools.chain(*trainer.seen):
                    self.assertEqual(advantage == 0, answer == "")
                    groups.setdefault(row, []).append(advantage)
                for members in groups.values():
                    self.assertEqual(members.count(0), 2)
                    self.assertAlmostEqual(sum(members), 0, places=3)
                self.assert_adds_up(trainer)

    def test_filters_that_compare_groups(self):
        for settings in (
            {"kind": "top_k", "k": 3},
            {"kind": "top_p", "p": 0.5},
            {"kind": "min_p", "p": 0.5},
            {"kind": "percentile", "low": 0.2, "high": 0.9},
        ):
            with self.subTest(settings["kind"]):
                trainer = self.fit(self.sieved(settings, rewards=noise, max_steps=2))
                self.assertNotIn("deficit", str(trainer.sieve.settings["size"]))
                self.assertEqual(trainer.sieve.totals["trained"]["groups"], 8)
                self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
                self.assert_adds_up(trainer)

    def test_range_of_means(self):
        trainer = self.fit(self.sieved({"kind": "mean_range", "low": 0.2, "high": 0.6}, cls=seeing()))
        wanted = trainer.train_dataset["want"]
        groups: dict = {}
        for row, answer, _ in itertools.chain(*trainer.seen):
            groups.setdefault(row, []).append(wanted[row] in answer)
        for members in groups.values():
            self.assertTrue(0.2 <= sum(members) / len(members) <= 0.6, members)


if __name__ == "__main__":
    unittest.main()
