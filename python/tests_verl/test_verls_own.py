"""The statements of docs/verl.md about verl's own buffer, over the same queue."""

import unittest
from unittest import mock

from world import HAS_VERL, Case, Group, Queue, Trainer

if HAS_VERL:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync


class Ended(Exception):
    """The clock ran out."""


@unittest.skipUnless(HAS_VERL, "verl is not installed")
class BuiltinTests(Case):
    def trainer(self, *groups, mode="sync"):
        """The loop with verl's buffer in it, and a batch of prompts."""
        draw = lambda number: groups[min(number, len(groups) - 1)]  # noqa: E731
        trainer = Trainer(draw, mode, batch_size=2, ahead=0)
        own = {"train_batch_size": 2, "gen_batch_size": 1} if mode == "sync" else {}
        with trainer.patched():
            trainer.buffer = (ReplayBuffer if mode == "sync" else ReplayBufferAsync)(
                trainer_mode=mode,
                trainer_config={},
                max_off_policy_threshold=8,
                max_off_policy_strategy="drop",
                sampler_kwargs={},
                refill_fn=trainer.add_prompts,
                filter_groups_metric="acc",
                **own,
            )
        trainer.add_prompts(2)
        return trainer

    def test_seven_equal_rewards_are_trained_on(self):
        trainer = self.trainer(Group((0.1,) * 7))
        self.assertEqual(sorted(trainer.sample()[0]), ["prompt0", "prompt1"])

    def test_group_with_a_nan_is_kept_and_one_without_a_metric_is_an_error(self):
        trainer = self.trainer(Group((1.0, 1.0, float("nan"))), mode="colocate_async")
        self.assertEqual(len(trainer.sample()[0]), 2)
        with self.assertRaisesRegex(RuntimeError, "missing DAPO metric"):
            self.trainer(Group((1.0, 1.0, None))).sample()

    def test_each_output_counts_as_a_member(self):
        # The two members are equal; their first outputs differ from their last ones.
        trainer = self.trainer(Group((1.0, 1.0), num_outputs=2))
        self.assertEqual(len(trainer.sample()[0]), 2)

    def test_failed_group_takes_a_place(self):
        trainer = self.trainer(Group((), status="failure"), Group())
        self.assertEqual(trainer.sample()[0], ["prompt1"])

    def test_never_ends_if_nothing_is_kept(self):
        for mode in ("sync", "colocate_async"):
            trainer = self.trainer(Group((1.0, 1.0)), mode=mode)
            sleep = Queue.sleep

            def ending(queue, seconds, sleep=sleep):
                if queue.num_sleeps == 400:
                    raise Ended
                sleep(queue, seconds)

            with mock.patch.object(Queue, "sleep", ending), self.assertRaises(Ended):
                trainer.sample()
            self.assertGreater(len(trainer.groups), 400)


if __name__ == "__main__":
    unittest.main()
