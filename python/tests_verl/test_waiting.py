"""When a batch is complete, how much is drawn for it, and how it ends if nothing is kept."""

import pickle
import random
import unittest

from world import HAS_VERL, ROOT, Case, Group, NothingKept, Trainer

UNIFORM = (1.0, 1.0, 1.0, 1.0)
MIXED = (0.0, 1.0, 0.0, 1.0)


def uniform(_):
    return Group(UNIFORM)


class LimitTests(Case):
    def test_nothing_is_kept(self):
        for mode in ("sync", "colocate_async", "separate_async"):
            with self.subTest(mode=mode):
                trainer = Trainer(uniform, mode, max_num_gen_batches=5)
                trainer.add_prompts(4)
                with self.assertRaises(NothingKept) as raised:
                    trainer.sample()
                lines = str(raised.exception).splitlines()
                self.assertEqual(lines[0], "step 1: 0 of 4 groups kept after 20 came back, 0 of them failed or too old")
                self.assertIn("20  100.0%  all correct", str(raised.exception))
                self.assertIn("by `acc`, of 20 groups (80 trajectories) generated", lines[1])
                self.assertEqual(raised.exception.diagnosis["tally"]["all_correct"], 20)
                self.assertEqual(len(trainer.groups), 20)

    def test_without_a_limit_only_a_run_that_keeps_nothing_ends(self):
        for mode in ("sync", "colocate_async", "separate_async"):
            for refill in ("expected", "exact"):
                for batch_size, most in ((4, 320), (40, 400)):
                    with self.subTest(mode=mode, refill=refill, batch_size=batch_size):
                        # A few are kept first: they are in the error's first line, and do not count.
                        draw = lambda number: Group(MIXED if number < 3 else UNIFORM)  # noqa: E731
                        trainer = Trainer(draw, mode, batch_size=batch_size, ahead=0, refill=refill)
                        trainer.add_prompts(batch_size)
                        with self.assertRaisesRegex(NothingKept, f"step 1: 3 of {batch_size} groups kept after"):
                            trainer.sample()
                        # The last look may have had a kept group beside others.
                        self.assertGreaterEqual(len(trainer.groups), most)
                        self.assertLessEqual(len(trainer.groups), most + batch_size)
        trainer = Trainer(lambda _: Group((), status="failure"), batch_size=4)
        trainer.add_prompts(4)
        with self.assertRaisesRegex(NothingKept, "0 of 4 groups kept after 320 came back, 320 of them failed"):
            trainer.sample()

    def test_a_healthy_run_at_a_low_keep_rate_goes_on(self):
        for mode in ("sync", "colocate_async"):
            rng = random.Random(5)
            trainer = Trainer(lambda _, rng=rng: Group(MIXED if rng.random() < 0.1 else UNIFORM), mode, batch_size=4)
            most = 0
            for _ in range(60):
                before = len(trainer.groups)
                trainer.step()
                most = max(most, len(trainer.groups) - before)
            self.assertEqual(len(trainer.trained), 240)
            self.assertGreater(most, 10 * 4, "a limit of ten batches would have ended it")
            self.assert_adds_up(trainer)

    def test_advice_is_in_verls_names(self):
        trainer = Trainer(lambda number: Group(MIXED if number % 8 == 0 else UNIFORM), max_num_gen_batches=2)
        trainer.add_prompts(4)
        with self.assertRaises(NothingKept) as raised:
            trainer.sample()
        said = str(raised.exception)
        self.assertIn("step 1: 1 of 4 groups kept after 8 came back", said)
        self.assertIn("trainer.v1.sampler.sampler_kwargs.max_num_gen_batches: 2 ->", said)
        self.assertIn("trainer.v1.sampler.sampler_kwargs.on_limit: error -> use_partial", said)
        self.assertIn("actor_rollout_ref.rollout.n: 4 ->", said)
        self.assertNotIn("schedule.", said)
        page = (ROOT / "docs/verl.md").read_text()
        for line in (said.splitlines()[0], *(line for line in said.splitlines() if "rollout.n: 4 ->" in line)):
            self.assertIn(f"\n{line}\n", page)

    def test_everything_fails(self):
        trainer = Trainer(lambda _: Group((), status="failure"), max_num_gen_batches=3)
        trainer.add_prompts(4)
        with self.assertRaisesRegex(NothingKept, "0 of 4 groups kept after 12 came back, 12 of them failed"):
            trainer.sample()

    def test_error_passes_from_process_to_process(self):
        trainer = Trainer(uniform, max_num_gen_batches=1)
        trainer.add_prompts(4)
        with self.assertRaises(NothingKept) as raised:
            trainer.sample()
        copy = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual(str(copy), str(raised.exception))
        self.assertEqual(copy.diagnosis, raised.exception.diagnosis)

    def test_any_settings_have_an_error(self):
        for filter, values in (
            (None, ()),
            ({"kind": "top_k", "k": 1}, MIXED),
            ({"kind": "percentile", "low": 0.9}, MIXED),
            ({"kind": "mean_range", "low": 0.6, "high": 0.9}, MIXED),
        ):
            for metric in ("acc", "reward"):
                with self.subTest(filter=filter, metric=metric):
                    trainer = Trainer(
                        lambda _, values=values: Group(values), max_num_gen_batches=2, filter=filter, metric=metric
                    )
                    trainer.add_prompts(4)
                    with self.assertRaisesRegex(
                        NothingKept, "step 1: [0-3] of 4 groups kept after 8 came back, 0 of them"
                    ):
                        trainer.sample()

    def test_limit_counts_what_a_batch_took(self):
        # Six of every batch of 12 are dropped: far more than the limit in all, and never in one batch.
        trainer = Trainer(lambda number: Group(MIXED if number % 2 else UNIFORM), max_num_gen_batches=4)
        for _ in range(10):
            trainer.step()
        self.assertEqual(len(trainer.trained), 40)
        self.assertGreater(len(trainer.groups), 16)

    def test_use_partial(self):
        trainer = Trainer(
            lambda number: Group(MIXED if number == 2 else UNIFORM), max_num_gen_batches=2, on_limit="use_partial"
        )
        trainer.add_prompts(4)
        uids, _, _ = trainer.sample()
        self.assertEqual(uids, ["prompt2"])
        self.assert_adds_up(trainer)
        trainer.add_prompts(4)
        with self.assertRaises(NothingKept):
            trainer.sample()

    def test_keep_dropped(self):
        trainer = Trainer(
            lambda number: Group(MIXED if number % 8 == 3 else (None, None) if number == 1 else UNIFORM),
            max_num_gen_batches=2,
            on_limit="keep_dropped",
        )
        trainer.add_prompts(4)
        uids, _, report = trainer.sample()
        # Filled with the oldest ones, but not with those without a metric.
        self.assertEqual(uids, ["prompt0", "prompt2", "prompt3", "prompt4"])
        self.assertEqual(report["groups/kept_when_insufficient_total"], 3)
        self.assertEqual(report["training/filter_groups/evicted_samples"], 4)
        self.assertEqual(report["groups/trained_total"], 4)
        self.assertEqual(trainer.waiting, [])
        trainer.draw = uniform
        trainer.add_prompts(4)
        with self.assertRaises(NothingKept):
            trainer.sample()

    def test_filled_groups_stay_until_they_are_trained_on(self):
        trainer = Trainer(
            lambda number: Group(MIXED if number == 0 else UNIFORM),
            "colocate_async",
            batch_size=4,
            ahead=0,
            max_num_gen_batches=1,
            on_limit="keep_dropped",
        )
        trainer.add_prompts(4)
        uids, report = trainer.wait(4)
        self.assertEqual(report["groups/kept_when_insufficient_total"], 3)
        trainer.draw = lambda _: Group(MIXED)
        self.assertEqual(trainer.sample(batch_size=2)[0], ["prompt0", "prompt1"])
        self.assertEqual(trainer.sample(batch_size=2)[0], ["prompt2", "prompt3"])
        self.assertEqual(trainer.totals["training/filter_groups/evicted_samples"], 0)

    def test_no_more_dropped_groups_are_held_than_a_step_has(self):
        trainer = Trainer(
            lambda number: Group(UNIFORM if number < 19 else MIXED),
            batch_size=4,
            on_limit="keep_dropped",
            refill="exact",
        )
        trainer.add_prompts(4)
        held = []
        sleep = trainer.queue.sleep
        trainer.queue.sleep = lambda seconds: (held.append(len(trainer.buffer._held)), sleep(seconds))
        trainer.sample()
        self.assertEqual(max(held), 4)

    def test_group_that_got_too_old_counts_as_lost(self):
        slow = {4, 5}
        trainer = Trainer(
            lambda number: Group(MIXED if number < 6 else UNIFORM, 10.0 if number in slow else 1.0),
            "colocate_async",
            ahead=0,
            max_num_gen_batches=2,
            max_lag=0,
        )
        trainer.add_prompts(6)
        trainer.sample()
        trainer.queue.now = 20.0
        with trainer.patched():
            trainer.pass_time()
            self.assertEqual(trainer.buffer.get_sampleable_count(1, "train"), 2)
        trainer.global_steps = 2
        trainer.add_prompts(4)
        with self.assertRaisesRegex(NothingKept, "0 of 4 groups kept after 8 came back, 2 of them failed or too old"):
            trainer.sample()

    def test_no_limit(self):
        trainer = Trainer(lambda number: Group(MIXED if number > 500 else UNIFORM), max_num_gen_batches=None)
        trainer.add_prompts(4)
        uids, _, _ = trainer.sample()
        self.assertEqual(len(uids), 4)


class DrawingTests(Case):
    def drawn(self, trainer, kept, in_flight, judged=(4, 4), taken=0):
        """Number of groups that are drawn in this state."""
        buffer = trainer.buffer
        buffer._kept = {f"kept{i}" for i in range(kept)}
        buffer._in_flight = [f"flight{i}" for i in range(in_flight)]
        buffer._num_good, buffer._num_judged = judged
        buffer._step_size = trainer.batch_size
        buffer._step, buffer._num_taken = 1, taken
        return buffer._num_lacking(1, trainer.batch_size // trainer.parts)

    def test_exact_draws_one_for_each_that_is_lost(self):
        trainer = Trainer(uniform, batch_size=16, refill="exact")
        self.assertEqual(self.drawn(trainer, 0, 16), 0)
        self.assertEqual(self.drawn(trainer, 3, 10, (7, 10)), 3)
        self.assertEqual(self.drawn(trainer, 16, 0, (20, 64)), 0)

    def test_expected_draws_by_the_keep_rate(self):
        trainer = Trainer(uniform, batch_size=16, max_num_gen_batches=None)
        # Nothing is known at first.
        self.assertEqual(self.drawn(trainer, 0, 16), 0)
        # A quarter of those that came back was kept: 13 more need 52, less 0.5 and a tenth of 3.1 kept groups, and
        # 8 are in flight.
        self.assertEqual(self.drawn(trainer, 3, 8, (13, 52)), 49 - 8)
        self.assertEqual(self.drawn(trainer, 15, 2, (13, 52)), 0)
        self.assertEqual(self.drawn(trainer, 15, 1, (13, 52)), 1)
        # If surplus is carried, a full batch is fine.
        trainer = Trainer(uniform, batch_size=16, max_num_gen_batches=None, surplus="carry")
        self.assertEqual(self.drawn(trainer, 3, 8, (13, 52)), 52 - 8)

    def test_a_stretch_of_uniform_groups_draws_no_more_than_ten_steps(self):
        trainer = Trainer(uniform, batch_size=16, max_num_gen_batches=None)
        self.assertEqual(self.drawn(trainer, 0, 40, (1, 1000)), 160 - 40)
        self.assertEqual(self.drawn(trainer, 0, 160, (1, 1000)), 0)

    def test_limit_bounds_what_is_drawn(self):
        trainer = Trainer(uniform, batch_size=16, max_num_gen_batches=2)
        trainer.buffer._settled = {f"came{i}": None for i in range(8)}
        self.assertEqual(self.drawn(trainer, 0, 8, (4, 12)), 16)
        self.assertEqual(self.drawn(trainer, 0, 24, (4, 12)), 0)

    def test_asynchronous_modes_fill_the_step_and_what_is_ahead(self):
        trainer = Trainer(uniform, "separate_async", batch_size=16, parts=4, ahead=0.5, refill="exact")
        # Half a step ahead of 16.
        self.assertEqual(self.drawn(trainer, 4, 20), 0)
        self.assertEqual(self.drawn(trainer, 4, 16), 4)
        # 12 of the step were taken: 4 are left of it.
        self.assertEqual(self.drawn(trainer, 4, 0, taken=12), 8)

    def test_what_came_back_makes_the_rate(self):
        groups = [Group(MIXED), Group(UNIFORM), Group((), status="failure"), Group(MIXED), Group(MIXED), Group(MIXED)]
        trainer = Trainer(lambda number: groups[number], batch_size=4, refill="exact")
        trainer.add_prompts(4)
        trainer.sample()
        # Four dummy groups, and these six with four kept. A batch of four reduces their weight.
        self.assertAlmostEqual(trainer.buffer._num_judged, 64 / 68 * (4 + 6))
        self.assertAlmostEqual(trainer.buffer._num_good, 64 / 68 * (4 + 4))

    def test_batches_of_a_step_are_counted(self):
        trainer = Trainer(lambda _: Group(MIXED), "separate_async", batch_size=16, parts=4, ahead=0)
        trainer.add_prompts(16)
        for taken in (4, 8, 12):
            trainer.sample()
            self.assertEqual(trainer.buffer._taken(1), taken)
        self.assertEqual(trainer.buffer._taken(2), 0)
        self.assertEqual(trainer.buffer._step_size, 16)


class ModeTests(Case):
    def test_sync_waits_for_all_in_flight_and_throws_surplus_away(self):
        late = 50.0
        trainer = Trainer(lambda number: Group(UNIFORM if number == 0 else MIXED, late if number == 6 else 1.0))
        trainer.add_prompts(7)
        uids, _, report = trainer.sample()
        self.assertEqual(uids, ["prompt1", "prompt2", "prompt3", "prompt4"])
        self.assertGreaterEqual(trainer.queue.now, late)
        self.assertEqual(report["training/filter_groups/discarded_surplus_samples"], 2)
        self.assertEqual(trainer.waiting, [])

    def test_sync_with_carry_takes_the_old_ones_first(self):
        trainer = Trainer(lambda number: Group(MIXED), batch_size=4, surplus="carry")
        trainer.add_prompts(2)
        self.assertEqual(trainer.step(), [["prompt0", "prompt1", "prompt2", "prompt3"]])
        self.assertEqual(trainer.step(), [["prompt4", "prompt5", "prompt6", "prompt7"]])
        self.assertEqual(trainer.waiting, ["prompt8", "prompt9"])
        self.assert_adds_up(trainer)

    def test_too_old(self):
        for arguments in ({"max_lag": 1}, {"threshold": 2}):
            with self.subTest(arguments=arguments):
                slow = Group(MIXED, 30.0)
                trainer = Trainer(
                    lambda number, slow=slow: slow if number == 0 else Group(MIXED),
                    "colocate_async",
                    batch_size=2,
                    **arguments,
                )
                for _ in range(2):
                    trainer.step()
                trainer.queue.now = 100.0
                self.assertEqual(trainer.trained, ["prompt1", "prompt2", "prompt3", "prompt4"])
                uids = trainer.step()[0]
                # In the third step its lag is 2.
                self.assertNotIn("prompt0", uids)
                self.assertEqual(trainer.totals["training/off_policy/evicted_samples"], 1)
                self.assert_adds_up(trainer)

    def test_wait_lets_no_group_get_too_old(self):
        trainer = Trainer(
            lambda number: Group(MIXED, 30.0 if number == 0 else 1.0),
            "colocate_async", batch_size=2, threshold=2, strategy="wait",
        )  # fmt: skip
        trainer.step()
        self.assertLess(trainer.queue.now, 30.0)
        self.assertIn("prompt0", trainer.step()[0])
        self.assertGreaterEqual(trainer.queue.now, 30.0)

    def test_validation_is_verls_own(self):
        trainer = Trainer(uniform)
        for status in ("finished", "failure"):
            trainer.queue.put(status, {"is_prompt": True, "status": status, "global_steps": 1}, partition="val")
        trainer.queue.put("finished_0_0", {}, partition="val")
        before = dict(trainer.buffer._counts)
        with trainer.patched():
            batch, report = trainer.buffer.sample(1, "val", 2)
        self.assertEqual(report, {})
        self.assertEqual(trainer.buffer._counts, before)
        self.assertEqual(trainer.groups, {})
        if HAS_VERL:
            self.assertEqual((batch.partition_id, batch.keys), ("val", ["finished_0_0"]))
        else:
            self.assertEqual(batch, ("verl's own", "val", 2))

    def test_count_of_kept_groups(self):
        trainer = Trainer(lambda number: Group(MIXED if number % 2 else UNIFORM), "separate_async", batch_size=8)
        with trainer.patched():
            self.assertEqual(trainer.buffer.get_sampleable_count(1, "train"), 0)
            trainer.queue.now = 5.0
            trainer.pass_time()
            self.assertEqual(trainer.buffer.get_sampleable_count(1, "train"), 4)
            # Counting draws nothing; at step 9 they would be too old.
            self.assertEqual(len(trainer.groups), 8)
            self.assertEqual(trainer.buffer.get_sampleable_count(9, "train"), 0)
            self.assertEqual(trainer.buffer.get_sampleable_count(1, "train"), 4)
            with self.assertRaisesRegex(ValueError, "partition 'val'"):
                trainer.buffer.get_sampleable_count(1, "val")

    def test_waiting_counts_each_group_once(self):
        trainer = Trainer(
            lambda number: Group(MIXED if number % 3 else UNIFORM), "separate_async", batch_size=4, parts=2
        )
        trainer.add_prompts(4)
        uids, report = trainer.wait(3)
        self.assertGreaterEqual(len(uids), 3)
        self.assertEqual(report["groups/trained_total"], 0)
        # verl would give these no weight: they are in the next batch's report, with what that one judges.
        means = {"train/filter_rate", "all/pass_rate", "all/filter_metric/mean"}
        self.assertEqual(report.keys() & means, set())
        self.assertGreater(report["training/filter_groups/evicted_samples"], 0)
        chosen, _, report = trainer.sample()
        self.assertLessEqual(set(chosen), uids)
        judged = trainer.totals["training/filter_groups/evicted_samples"] + len(uids)
        rate = trainer.totals["training/filter_groups/evicted_samples"] / judged
        self.assertEqual(report["train/filter_rate"], rate)
        self.assertEqual(report["all/pass_rate"], (0.5 * len(uids) + judged - len(uids)) / judged)
        self.assert_adds_up(trainer)


if __name__ == "__main__":
    unittest.main()
