"""Random histories: whatever comes back in whatever order, no group is lost, none is trained on twice, and
each batch has the oldest available groups with signal."""

import os
import random
import unittest

from world import Case, Trainer, mixed

HISTORIES = int(os.environ.get("VERL_HISTORIES", "10000"))


class HistoryTests(Case):
    def test_histories(self):
        for seed in range(HISTORIES):
            with self.subTest(seed=seed):
                self.play(random.Random(seed))

    def play(self, rng):
        mode = rng.choice(["sync", "sync", "colocate_async", "separate_async"])
        parts = rng.choice([1, 2]) if mode == "separate_async" else 1
        arguments = {
            "refill": rng.choice(["expected", "exact"]),
            "max_num_gen_batches": None,
            "poll_interval": rng.choice([0.5, 2.0, 7.0]),
        }
        if mode == "sync":
            arguments["surplus"] = rng.choice(["discard", "carry"])
        carries = arguments.get("surplus") != "discard"
        if carries and rng.random() < 0.3:
            arguments["max_lag"] = rng.randrange(4)
        strategy = rng.choice(["drop", "drop", "wait"])
        threshold = rng.choice([1, 2, 8, None])
        trainer = Trainer(
            mixed(rng.uniform(0.2, 1.0), rng, n=rng.choice([2, 4, 6])),
            mode,
            batch_size=parts * rng.randint(1, 5),
            parts=parts,
            ahead=rng.choice([0, 0.5, 1, 2]),
            threshold=threshold,
            strategy=strategy,
            **arguments,
        )
        bound = arguments["max_lag"] + 1 if "max_lag" in arguments else threshold
        for _ in range(rng.randint(1, 4)):
            step = trainer.global_steps
            for uids in trainer.step():
                self.assertEqual(len(uids), trainer.batch_size // parts)
                for uid in uids:
                    self.assertTrue(trainer.groups[uid].has_signal, uid)
                    if bound is not None and carries and (strategy == "drop" or mode == "sync"):
                        self.assertLessEqual(step - trainer.steps[uid] + 1, bound)
            self.assertEqual(len(set(trainer.trained)), len(trainer.trained))
            self.assert_oldest(trainer, uids)
            if mode == "sync":
                self.assertEqual(trainer.running, {})
                if not carries:
                    self.assertEqual(trainer.waiting, [])
            self.assert_rows_have_groups(trainer)
            self.assert_adds_up(trainer)

    def assert_oldest(self, trainer, uids):
        """No group with signal that was there is older than one of the last batch."""
        age = lambda uid: (trainer.steps[uid], int(uid.removeprefix("prompt")))  # noqa: E731
        left = [uid for uid in trainer.waiting if uid in trainer.buffer._kept]
        if left:
            self.assertLess(max(map(age, uids)), min(map(age, left)))

    def assert_rows_have_groups(self, trainer):
        keys = trainer.queue.partitions["train"]
        owners = {key.rsplit("_", 2)[0] for key, tag in keys.items() if not tag.get("is_prompt")}
        self.assertLessEqual(owners, set(trainer.waiting))


if __name__ == "__main__":
    unittest.main()
