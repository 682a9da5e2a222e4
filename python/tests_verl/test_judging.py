"""Which groups a batch has: exact uniformity, members without a metric, failed groups, and the names of metrics."""

import math
import unittest
import unittest.mock

from world import Case, Group, Queue, SamplerError, Trainer, module


def first(*groups):
    """Draws these groups first, and then groups that are kept."""
    return lambda number: groups[number] if number < len(groups) else Group()


class JudgingTests(Case):
    def batch(self, *groups, batch_size=2, **arguments):
        trainer = Trainer(first(*groups), batch_size=batch_size, **arguments)
        trainer.add_prompts(batch_size)
        uids, batch, report = trainer.sample()
        return trainer, uids, report

    def test_equal_floats_are_uniform_in_every_number(self):
        for value in (0.1, 0.7, 1 / 3, 1.1, -0.3, 1e-300, 1e300):
            for n in range(2, 20):
                with self.subTest(value=value, n=n):
                    _, uids, report = self.batch(Group((value,) * n))
                    self.assertNotIn("prompt0", uids)
                    self.assertEqual(report["training/filter_groups/evicted_samples"], 1)
                    self.assertEqual(report["_dapo_filtered_reward_counts"], {value: 1})

    def test_smallest_difference_is_signal(self):
        _, uids, _ = self.batch(Group((0.1, math.nextafter(0.1, 1))))
        self.assertEqual(uids, ["prompt0", "prompt1"])

    def test_members_without_a_metric_do_not_count(self):
        for missing in (None, float("nan"), float("inf"), "no"):
            with self.subTest(missing=missing):
                # Beside two that differ, beside two that are equal, and beside a single one.
                _, uids, report = self.batch(
                    Group((0.0, 1.0, missing)),
                    Group((1.0, 1.0, missing)),
                    Group((1.0, missing)),
                    Group((missing, missing)),
                )
                self.assertEqual(uids, ["prompt0", "prompt4"][: len(uids)])
                self.assertEqual(report["groups/dropped/all_correct_total"], 1)

    def test_members_without_a_metric_are_not_trained_on(self):
        for missing in (None, float("nan"), float("inf")):
            trainer = Trainer(first(Group((0.0, missing, 1.0), num_outputs=2)), batch_size=1)
            trainer.add_prompts(1)
            _, batch, report = trainer.sample()
            self.assertEqual(sorted(batch.keys), ["prompt0_0_0", "prompt0_0_1", "prompt0_2_0", "prompt0_2_1"])
            self.assertEqual(set(trainer.queue.partitions["train"]), set(batch.keys))
            self.assertEqual(report["trajectories/left_out_total"], 1)
        # Without a filter no metric is looked at.
        trainer = Trainer(first(Group((0.0, None, 1.0))), batch_size=1, filter=None)
        trainer.add_prompts(1)
        _, batch, report = trainer.sample()
        self.assertEqual((len(batch.keys), report["trajectories/left_out_total"]), (3, 0))

    def test_unscored(self):
        _, uids, report = self.batch(Group((1.0, None)), Group((None, None)), Group(()))
        self.assertEqual(report["groups/dropped/unscored_total"], report["training/filter_groups/evicted_samples"])
        self.assertGreaterEqual(report["groups/dropped/unscored_total"], 2)
        self.assertNotIn("prompt0", uids)

    def test_failed_group_is_replaced_with_or_without_rows(self):
        for values in ((), (0.0, 1.0)):
            trainer, uids, report = self.batch(Group(values, status="failure"))
            self.assertEqual(uids, ["prompt1", "prompt2"])
            self.assertEqual(report["training/rollout_failure/evicted_samples"], 1)
            self.assertEqual([key for key in trainer.queue.partitions["train"] if key.startswith("prompt0")], [])

    def test_member_with_several_outputs_counts_once(self):
        # The first output of each member has another value; a single member has no group to differ from.
        _, uids, report = self.batch(Group((1.0, 1.0), num_outputs=3), Group((0.0, 1.0), num_outputs=3))
        self.assertEqual(uids[0], "prompt1")
        self.assertEqual(report["groups/dropped/all_correct_total"], 1)

    def test_batch_has_all_rows_of_its_groups_and_their_tags(self):
        trainer = Trainer(first(Group(num_outputs=2)), batch_size=1)
        trainer.add_prompts(1)
        _, batch, _ = trainer.sample()
        self.assertEqual(sorted(batch.keys), ["prompt0_0_0", "prompt0_0_1", "prompt0_1_0", "prompt0_1_1"])
        self.assertEqual(batch.tags, [{"seq_len": 3}] * 4)
        self.assertEqual(batch.partition_id, "train")
        # verl reads the rows afterwards, and removes them itself.
        self.assertEqual(set(trainer.queue.partitions["train"]), set(batch.keys))

    def test_reward_of_verl(self):
        for metric in ("reward", "seq_reward"):
            _, uids, report = self.batch(Group((0.5, 0.5)), Group((0.5, 1.0)), metric=metric)
            self.assertEqual(uids[0], "prompt1")
            self.assertEqual(report["groups/dropped/uniform_total"], 1)

    def test_sums_of_32_bits_are_read_as_decimals(self):
        # 0.1 + 0.2 and 0.3 in floats of 32 bits.
        self.assertEqual(module._decimal(0.30000001192092896), 0.3)
        self.assertEqual(module._decimal(0.30000004172325134), 0.3)
        for value in (123456789.0, -0.5, 0.0, 1e-30):
            self.assertEqual(module._decimal(value), value)
        self.assertTrue(math.isnan(module._decimal(math.nan)))

    def test_other_filters(self):
        _, uids, report = self.batch(
            Group((0.0, 1.0)), Group((0.0, 0.0, 0.0, 1.0)), filter={"kind": "mean_range", "low": 0.3, "high": 0.9}
        )
        self.assertEqual(uids, ["prompt0", "prompt2"])
        self.assertEqual(report["groups/dropped/below_range_total"], 1)
        self.assertNotIn("_dapo_filtered_reward_counts", report)

    def test_no_filter_keeps_all_but_failed_and_empty_groups(self):
        _, uids, report = self.batch(Group((1.0, 1.0)), Group((None, None)), filter=None)
        self.assertEqual(uids, ["prompt0", "prompt1"])
        _, uids, report = self.batch(Group(()), Group(status="failure"), filter=None)
        self.assertEqual(uids, ["prompt2", "prompt3"])
        self.assertEqual(report["training/filter_groups/evicted_samples"], 1)
        self.assertNotIn("all/filter_metric/mean", report)

    def test_filter_that_compares_groups_judges_rounds(self):
        # The two most spread of the first round's four, though two of them end early.
        spread = [Group((0.0, value), seconds) for value, seconds in ((1.0, 9), (2.0, 1), (4.0, 9), (3.0, 1))]
        _, uids, report = self.batch(*spread, batch_size=4, on_limit="use_partial", max_num_gen_batches=1,
                                     filter={"kind": "top_k", "k": 2})  # fmt: skip
        self.assertEqual(uids, ["prompt2", "prompt3"])
        self.assertEqual(report["training/filter_groups/evicted_samples"], 2)

    def test_single_member(self):
        trainer = Trainer(lambda _: Group((1.0,)), batch_size=2)
        trainer.add_prompts(2)
        self.assertEqual(trainer.sample()[0], ["prompt0", "prompt1"])

    def test_metric_that_is_not_there(self):
        with self.assertRaisesRegex(
            SamplerError, "none of the first 4 trajectories has the metric `accuracy`.*`acc`.*or to `reward`"
        ):
            self.batch(metric="accuracy")
        with self.assertRaisesRegex(SamplerError, "a number and no dictionary"):
            self.batch(Group((None, None)), Group((None, None)))

    def test_a_first_look_without_the_metric(self):
        # Groups that end first may be the few that could not be scored; a whole batch of them shows that no
        # group has it.
        trainer = Trainer(first(Group((None, None), 0.5), *[Group((0.0, 1.0), 5.0)] * 8), batch_size=3)
        trainer.add_prompts(3)
        uids, _, report = trainer.sample()
        self.assertEqual((len(uids), report["groups/dropped/unscored_total"]), (3, 1))
        trainer = Trainer(lambda number: Group((None, None), number), batch_size=3)
        with trainer.patched():
            # Nothing is known about a batch yet.
            trainer.add_prompts(1)
            trainer.queue.now = 5.0
            trainer.pass_time()
            self.assertEqual(trainer.buffer.get_sampleable_count(1, "train"), 0)
        with self.assertRaisesRegex(SamplerError, "none of the first [68] trajectories has the metric `acc`"):
            trainer.add_prompts(3)
            trainer.sample()

    def test_metric_that_is_no_number(self):
        with self.assertRaisesRegex(
            SamplerError, "`acc` of the trajectory prompt0_1_0 is 'no answer': a filter needs numbers"
        ):
            self.batch(Group((0.0, "no answer")))

    def test_reward_that_comes_later(self):
        trainer = Trainer(first(), batch_size=1, metric="reward")
        trainer.add_prompts(1)
        get = Queue.kv_batch_get

        def without(queue, keys, partition_id, select_fields):
            for key in keys:
                queue.values[key].pop("rm_scores", None)
            return get(queue, keys, partition_id, select_fields)

        with (
            unittest.mock.patch.object(Queue, "kv_batch_get", without),
            self.assertRaisesRegex(SamplerError, "`rm_scores`"),
        ):
            trainer.sample()

    def test_status_that_is_not_known(self):
        with self.assertRaisesRegex(SamplerError, "the status paused, which 0.9.1 does not have"):
            self.batch(Group(status="paused"))

    def test_figures_are_of_all_that_was_judged(self):
        _, _, report = self.batch(Group((0.0, 0.0)), Group((0.0, 1.0)), Group((1.0, 1.0)), refill="exact")
        self.assertEqual(report["all/pass_rate"], 4 / 8)
        self.assertEqual(report["all/filter_metric/mean"], 4 / 8)
        self.assertEqual(report["train/filter_rate"], 2 / 4)
        _, _, report = self.batch(Group((0.0, 0.25)))
        self.assertEqual(report["all/filter_metric/mean"], 1.25 / 4)


if __name__ == "__main__":
    unittest.main()
