"""A filter that keeps everything changes nothing: losses, gradient norms and weights are the trainer's own,
to the bit."""

import unittest

import trl
from toy import KEEP_ALL, Case, data, digit, noise

SHAPES = {
    # num_iterations, steps_per_generation, gradient_accumulation_steps
    "one batch a step": (1, 2, 2),
    "two iterations": (2, 4, 2),
    "two steps a batch": (1, 8, 4),
    "three iterations": (3, 2, 2),
    "two batches a step": (1, 2, 4),
}


class KeepAllTests(Case):
    def both(self, sieve=None, filter=KEEP_ALL, **keywords):
        alone = self.fit(self.trainer(**keywords))
        sieved = self.fit(self.sieved(filter, sieve, **keywords))
        self.assert_same_training(alone, sieved)
        self.assertEqual(alone.state.num_input_tokens_seen, sieved.state.num_input_tokens_seen)
        self.assert_adds_up(sieved)
        return alone, sieved

    def test_default_mode(self):
        alone, sieved = self.both(max_steps=5)
        self.assertIn("deficit", sieved.sieve.settings["size"])
        figures = ("reward", "reward_std", "frac_reward_zero_std", "entropy", "completions/mean_length", "num_tokens")
        for ours, theirs in zip(sieved.state.log_history[:-1], alone.state.log_history[:-1], strict=True):
            self.assertEqual({name: ours[name] for name in figures}, {name: theirs[name] for name in figures})

    def test_rounds(self):
        self.both({"schedule": {"mode": "rounds"}}, max_steps=5)

    def test_every_shape(self):
        for name, (iterations, per_generation, accumulation) in SHAPES.items():
            for mode in ("deficit", "rounds") if name == "two iterations" else ("deficit",):
                with self.subTest(name, mode=mode):
                    self.both(
                        {"schedule": {"mode": mode}},
                        num_iterations=iterations,
                        steps_per_generation=per_generation,
                        gradient_accumulation_steps=accumulation,
                        max_steps=6,
                    )

    def test_losses_that_count_tokens(self):
        # Two of them do not add up over micro-batches as the others do.
        for loss in ("dapo", "grpo", "dr_grpo"):
            with self.subTest(loss):
                # A group with only truncated members has no score: it is kept only without a filter.
                self.both(filter=None, loss_type=loss, mask_truncated_completions=True)

    def test_passes_of_other_lengths_than_batches(self):
        # 10 rows are two batches of four groups: TRL leaves two rows of each permutation out.
        _, sieved = self.both(rows=data(10), max_steps=7)
        self.assertEqual(sieved.sieve.state()["epoch"], 3)

    def test_epochs(self):
        _, sieved = self.both(rows=data(9), max_steps=-1, num_train_epochs=3)
        self.assertEqual(sieved.sieve.totals["trained"]["groups"], 24)

    def test_order_of_the_data(self):
        self.both(rows=data(9), shuffle_dataset=False)

    def test_rloo(self):
        for mode in ("deficit", "rounds"):
            for beta in (0.0, 0.1):
                with self.subTest(mode, beta=beta):
                    self.both({"schedule": {"mode": mode}}, cls=trl.RLOOTrainer, beta=beta)
        with self.subTest("buffers"):
            self.both(cls=trl.RLOOTrainer, num_iterations=2, steps_per_generation=4, max_steps=6)

    def test_reference_model(self):
        self.both(beta=0.1)

    def test_several_functions(self):
        self.both(rewards=[noise, digit], reward_weights=[0.5, 2.0])
        with self.subTest("scaled by the batch"):
            self.both(rewards=[noise, digit], scale_rewards="batch")


if __name__ == "__main__":
    unittest.main()
