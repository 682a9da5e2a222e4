"""A resumed run equals the uninterrupted run, to the bit: no prompt twice, none left out."""

import json
import shutil
import unittest

import torch
from toy import KEEP_ALL, Case, Judge, Killed, Killing, course, data

from tamis.trl import AttachError

SHAPES = {
    # num_iterations, steps_per_generation, gradient_accumulation_steps, per_device_train_batch_size
    "between batches": (1, 2, 2, 8),
    "inside a batch": (1, 4, 2, 8),
    "inside an iteration": (3, 2, 2, 8),
}


class ResumeTests(Case):
    def settings(self, shape, **more):
        iterations, per_generation, accumulation, size = SHAPES[shape]
        return {
            "num_iterations": iterations,
            "steps_per_generation": per_generation,
            "gradient_accumulation_steps": accumulation,
            "per_device_train_batch_size": size,
            "save_strategy": "steps",
            "save_steps": 3,
            "max_steps": 6,
            **more,
        }

    def interrupted(self, shape, filter="variance", steps=3, out="halves", **settings):
        """A run that ends after so many of six steps, as if it had been killed."""

        trainer = self.sieved(filter, out=out, **self.settings(shape, **settings))
        trainer.add_callback(Killing(steps))
        with self.assertRaises(Killed):
            self.fit(trainer)
        return trainer

    def test_to_the_bit(self):
        for shape in SHAPES:
            for restored in (False, True) if shape == "inside a batch" else (False,):
                with self.subTest(shape, restore_callback_states_from_checkpoint=restored):
                    whole, judges = Judge(), (Judge(), Judge())
                    one = self.fit(self.sieved(rewards=whole, out="whole", **self.settings(shape)))
                    first = self.interrupted(shape, rewards=judges[0])
                    second = self.sieved(
                        rewards=judges[1],
                        out="halves",
                        **self.settings(shape, restore_callback_states_from_checkpoint=restored),
                    )
                    self.fit(second, resume_from_checkpoint=True)
                    self.assert_same_training(one, second)
                    self.assertEqual(judges[0].asked + judges[1].asked, whole.asked)
                    self.assertEqual(one.sieve.state(), second.sieve.state())
                    self.assertEqual(one.sieve.totals, second.sieve.totals)
                    self.assert_adds_up(second)
                    self.assertEqual(course(first), course(one)[:3])
                    shutil.rmtree(self.folder / "halves")
                    shutil.rmtree(self.folder / "whole")

    def test_like_trl_alone(self):
        # In the first pass over the data; TRL starts each pass that is resumed with the order of the first.
        keywords = self.settings("between batches")
        self.fit(self.trainer(out="alone", **keywords))
        alone = self.trainer(out="alone", **keywords)
        self.fit(alone, resume_from_checkpoint=str(self.folder / "alone" / "checkpoint-3"))
        self.interrupted("between batches", KEEP_ALL)
        sieved = self.sieved(KEEP_ALL, out="halves", **keywords)
        self.fit(sieved, resume_from_checkpoint=True)
        self.assert_same_training(alone, sieved)

    def test_in_a_later_pass(self):
        keywords = self.settings("between batches", rows=data(10))
        whole = self.fit(self.trainer(out="whole", **keywords))
        self.interrupted("between batches", KEEP_ALL, rows=data(10))
        sieved = self.sieved(KEEP_ALL, out="halves", **keywords)
        self.fit(sieved, resume_from_checkpoint=True)
        self.assertEqual(sieved.sieve.state()["epoch"], 2)
        self.assert_same_training(whole, sieved)

    def test_path_and_other_folder(self):
        for shape in ("between batches", "inside a batch"):
            with self.subTest(shape):
                one = self.fit(self.sieved(out="whole", **self.settings(shape)))
                moved = self.folder / "moved"
                shutil.copytree(self.folder / "whole" / "checkpoint-3", moved)
                shutil.rmtree(self.folder / "whole")
                second = self.sieved(out="elsewhere", **self.settings(shape))
                self.fit(second, resume_from_checkpoint=str(moved))
                self.assert_same_training(one, second)
                shutil.rmtree(moved)
                shutil.rmtree(self.folder / "elsewhere")

    def test_twice(self):
        one = self.fit(self.sieved(out="whole", **self.settings("inside a batch", save_steps=1)))
        self.interrupted("inside a batch", steps=1, save_steps=1)
        second = self.sieved(out="halves", **self.settings("inside a batch", save_steps=1, max_steps=3))
        self.fit(second, resume_from_checkpoint=True)
        third = self.sieved(out="halves", **self.settings("inside a batch", save_steps=1))
        self.fit(third, resume_from_checkpoint=True)
        self.assertEqual(one.sieve.totals, third.sieve.totals)
        self.assertEqual(one.sieve.state()["place"], third.sieve.state()["place"])

    def test_same_trainer_after_an_error(self):
        # Nothing of the failed batch is left, also in TRL's own buffer.
        class Failing(Judge):
            left = 10**9

            def __call__(self, **keywords):
                if self.left == 0:
                    self.left = 10**9
                    raise ConnectionError("the judge is away")
                self.left -= 1
                return super().__call__(**keywords)

        for shape in SHAPES:
            with self.subTest(shape):
                one = self.fit(self.sieved(out="whole", **self.settings(shape)))
                failing = Failing()
                trainer = self.sieved(rewards=failing, out="halves", **self.settings(shape))
                seen = Judge()
                self.fit(self.sieved(rewards=seen, out="seen", **self.settings(shape, max_steps=3, save_strategy="no")))
                failing.left = seen.calls
                with self.assertRaises(ConnectionError):
                    self.fit(trainer)
                self.fit(trainer, resume_from_checkpoint=True)
                self.assert_same_training(one, trainer)
                self.assertEqual(one.sieve.totals, trainer.sieve.totals)
                shutil.rmtree(self.folder / "halves")
                shutil.rmtree(self.folder / "whole")

    def test_refusals(self):
        self.interrupted("inside a batch")
        for name, filter, sieve, settings, reasons in [
            ("filter", KEEP_ALL, {}, {}, ["`filter` is"]),
            ("metric", "variance", {"metric": "digit"}, {}, ["`metric` is digit and was reward"]),
            ("limit", "variance", {"schedule": {"max_num_gen_batches": 3}}, {}, ["`max_num_gen_batches` is"]),
            ("seed", "variance", {"seed": 7}, {}, ["`seed of the prompts` is 7 and was 42"]),
            ("order", "variance", {}, {"shuffle_dataset": False}, ["`shuffle` is False and was True"]),
            (
                "two",
                "variance",
                {"seed": 7, "metric": "length"},
                {"rows": data(60)},
                ["`rows` is 60", "seed", "metric"],
            ),
            (
                "size",
                "variance",
                {},
                {"generation_batch_size": 16, "steps_per_generation": None},
                ["`train_batch_size` is 4"],
            ),
            (
                "layout",
                "variance",
                {},
                {"per_device_train_batch_size": 16, "steps_per_generation": 2, "gradient_accumulation_steps": 1},
                ["`per_device_train_batch_size` is 16 and was 8", "`steps_per_generation` is 2 and was 4"],
            ),
        ]:
            with self.subTest(name):
                trainer = self.sieved(filter, sieve, out="halves", **self.settings("inside a batch", **settings))
                with self.assertRaises(AttachError) as raised:
                    self.fit(trainer, resume_from_checkpoint=True)
                for reason in reasons:
                    self.assertIn(reason, str(raised.exception))
        file = self.folder / "halves" / "checkpoint-3" / "tamis_sieve_0.pt"
        for name, damage in (
            ("cut short", lambda: file.write_bytes(file.read_bytes()[:100])),
            ("missing", file.unlink),
        ):
            with self.subTest(name):
                damage()
                trainer = self.sieved(out="halves", **self.settings("inside a batch"))
                with self.assertRaisesRegex(AttachError, "rest of the checkpoint's generation batch cannot be loaded"):
                    self.fit(trainer, resume_from_checkpoint=True)

    def test_damaged_state(self):
        self.interrupted("between batches")
        file = self.folder / "halves" / "checkpoint-3" / "trainer_state.json"
        whole = file.read_text()
        for name in ("scheduler", "epoch", "layout"):
            with self.subTest(name):
                told = json.loads(whole)
                saved = told["stateful_callbacks"]["TamisSieve"]["attributes"]["saved"]
                damage = str(saved.pop(name)).replace("{", "[", 1)
                if name == "scheduler":
                    saved[name] = damage
                file.write_text(json.dumps(told))
                trainer = self.sieved(out="halves", **self.settings("between batches"))
                with self.assertRaisesRegex(AttachError, "state of the sieve cannot be read"):
                    self.fit(trainer, resume_from_checkpoint=True)

    def test_checkpoint_of_trl_alone_after_a_sieve(self):
        keywords = self.settings("between batches")
        self.fit(self.sieved(out="halves", **(keywords | {"max_steps": 3})))
        self.fit(self.trainer(out="halves", **keywords), resume_from_checkpoint=True)
        judge, fresh = Judge(), Judge()
        trainer = self.sieved(rewards=judge, out="halves", **(keywords | {"max_steps": 7}))
        with self.assertLogs("tamis.trl", "WARNING") as logged:
            self.fit(trainer, resume_from_checkpoint=True)
        self.assertIn("saved without a sieve", logged.output[0])
        self.fit(self.sieved(rewards=fresh, out="fresh", max_steps=1))
        self.assertEqual(judge.rows[:4], fresh.rows[:4])

    def test_state_is_data(self):
        """Our part of a checkpoint is JSON, and tensors that load without running code."""
        trainer = self.interrupted("inside a batch")
        folder = self.folder / "halves" / "checkpoint-3"
        kept = json.loads((folder / "trainer_state.json").read_text())["stateful_callbacks"]["TamisSieve"]
        self.assertEqual(kept["attributes"]["saved"]["place_in_batch"], 2)
        rest = torch.load(folder / "tamis_sieve_0.pt", weights_only=True)
        self.assertEqual(len(rest["inputs"]), 4)
        self.assertEqual(trainer.sieve.state()["steps"], 2)

    def test_checkpoint_without_a_sieve(self):
        self.fit(self.trainer(out="halves", **self.settings("between batches", max_steps=3)))
        judge = Judge()
        trainer = self.sieved(rewards=judge, out="halves", **self.settings("between batches"))
        with self.assertLogs("tamis.trl", "WARNING") as logged:
            self.fit(trainer, resume_from_checkpoint=True)
        self.assertIn("saved without a sieve", logged.output[0])
        self.assertEqual(len(course(trainer)), 6)
        fresh = Judge()
        self.fit(self.sieved(rewards=fresh, out="fresh", max_steps=1))
        self.assertEqual(judge.rows[:4], fresh.rows[:4])


if __name__ == "__main__":
    unittest.main()
