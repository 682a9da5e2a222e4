"""The version of TRL: it works, or it is refused by name."""

import unittest
from unittest import mock

import trl
from toy import TRL, Case

import tamis.trl
from tamis.trl import AttachError


class SupportTests(Case):
    def test_version(self):
        for kind in (trl.GRPOTrainer, trl.RLOOTrainer):
            with self.subTest(kind.__name__):
                trainer = self.trainer(cls=kind)
                if tamis.trl.refusals.moved_methods(kind):
                    self.assertNotIn(str(TRL), tamis.trl.errors.TESTED)
                    with self.assertRaises(AttachError) as raised:
                        tamis.trl.attach(trainer)
                    self.assertIn(f"of TRL {TRL}", str(raised.exception))
                    self.assertIn(tamis.trl.errors.TESTED, str(raised.exception))
                else:
                    self.fit(tamis.trl.attach(trainer))
                    self.assert_adds_up(trainer)

    def test_own_train(self):
        class Without(trl.GRPOTrainer):
            def train(self):
                return super().train()

        class Keyword(trl.GRPOTrainer):
            def train(self, *, resume_from_checkpoint=None):
                return super().train(resume_from_checkpoint=resume_from_checkpoint)

        for kind in (Without, Keyword):
            with self.subTest(kind.__name__):
                trainer = self.fit(tamis.trl.attach(self.trainer(cls=kind, max_steps=1)))
                self.assertEqual(trainer.state.global_step, 1)
                self.assert_adds_up(trainer)

    def test_rows_that_are_left_out(self):
        class Halving(trl.GRPOTrainer):
            def _generate_and_score_completions(self, inputs):
                output = super()._generate_and_score_completions(inputs)
                return {name: value[::2] if getattr(value, "ndim", 0) else value for name, value in output.items()}

        trainer = tamis.trl.attach(self.trainer(cls=Halving, max_steps=1))
        with self.assertRaisesRegex(AttachError, "SievedHalving made 8 rows of 16"):
            self.fit(trainer)
        self.assertEqual(trainer.sieve.totals["generated"]["groups"], 0)

    def test_methods_that_moved(self):
        class Moved(trl.GRPOTrainer):
            def _generate(self, prompts, images=None):
                return super()._generate(prompts)

        with (
            self.assertRaises(AttachError) as raised,
            mock.patch.object(trl.GRPOTrainer, "_calculate_rewards", Moved._generate),
        ):
            tamis.trl.attach(self.trainer(cls=Moved))
        self.assertEqual(
            str(raised.exception).splitlines(),
            [
                f"Moved.{name} of TRL {TRL} has the parameters self, prompts, images: versions that work are "
                f"{tamis.trl.errors.TESTED}"
                for name in ("_generate", "_calculate_rewards")
            ],
        )


if __name__ == "__main__":
    unittest.main()
