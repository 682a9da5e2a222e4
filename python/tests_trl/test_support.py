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
