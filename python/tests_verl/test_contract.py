"""verl's own parts around the buffer: its YAML, its trainer's constructor, its aggregation of metrics, its classes."""

import inspect
import random
import re
import unittest
from pathlib import Path

from world import COUNTS, HAS_VERL, ROOT, Case, Group, Trainer, mixed, tamis

if HAS_VERL:
    import verl
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
    from verl.trainer.ppo.v1.utils import MetricsAggregator


class NameTests(Case):
    def reports(self, **arguments):
        """Reports of steps in which everything happens, of two batches each."""
        rng = random.Random(1)
        trainer = Trainer(mixed(0.4, rng), "separate_async", batch_size=8, parts=2, max_lag=0, **arguments)
        reports = []
        sample = trainer.buffer.sample
        trainer.buffer.sample = lambda **keywords: (result := sample(**keywords), reports.append(result[1]))[0]
        for _ in range(12):
            trainer.step()
        for reason in ("singleton", "below_range", "above_range", "zero_score", "outside_pool", "uniform", "unscored"):
            reports[0].setdefault(f"groups/dropped/{reason}_total", 0)
        return trainer, reports

    def test_names_of_counts_are_added_up(self):
        for on_limit in ("error", "keep_dropped"):
            trainer, reports = self.reports(on_limit=on_limit)
            self.assert_adds_up(trainer)
            for name in {name for report in reports for name, value in report.items() if isinstance(value, int)}:
                self.assertTrue(name in COUNTS.values() or name.endswith("_total"), name)
                self.assertNotIn("min", name)
                self.assertNotIn("max", name)

    @unittest.skipUnless(HAS_VERL, "verl is not installed")
    def test_verl_adds_them_up(self):
        trainer, reports = self.reports()
        for first, second in zip(reports[::2], reports[1::2], strict=True):
            aggregator = MetricsAggregator()
            aggregator.add_step_metrics(first, sample_count=8)
            aggregator.add_step_metrics(second, sample_count=8)
            combined = aggregator.get_aggregated_metrics()
            for name in first.keys() | second.keys():
                one, other = first.get(name), second.get(name)
                if isinstance(one, int) or isinstance(other, int):
                    self.assertEqual(combined[name], (one or 0) + (other or 0), name)
                elif name == "_dapo_filtered_reward_counts":
                    self.assertEqual(
                        sum(combined[name].values()), sum((one or {}).values()) + sum((other or {}).values())
                    )
                elif one is not None and other is not None:
                    self.assertAlmostEqual(combined[name], (one + other) / 2, places=12, msg=name)
        self.assertGreater(trainer.totals["training/off_policy/evicted_samples"], 0)


@unittest.skipUnless(HAS_VERL, "verl is not installed")
class ContractTests(Case):
    def config(self, *overrides):
        folder = Path(verl.__file__).parent / "trainer/config"
        config = OmegaConf.load(folder / "_generated_ppo_trainer.yaml")
        lines = [
            "trainer.v1.sampler.custom_sampler.path=pkg://tamis.verl",
            "trainer.v1.sampler.custom_sampler.name=ReplayBuffer",
        ]
        given = OmegaConf.from_dotlist([*lines, *overrides])
        OmegaConf.set_struct(config, True)
        for line in [*lines, *overrides]:
            name = line.partition("=")[0]
            with_new = name.startswith("trainer.v1.sampler.sampler_kwargs.")
            # Only the arguments of the sampler are new: every other name has to be in verl's YAML.
            self.assertTrue(with_new or OmegaConf.select(config, name, default="missing") != "missing", name)
            OmegaConf.update(config, name, OmegaConf.select(given, name), force_add=with_new)
        return config

    def build(self, *overrides):
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer

        class Stand:
            config = self.config(*overrides)
            trainer_mode = config.trainer.v1.trainer_mode

            def _add_prompts_to_generate(self, num_prompts):
                raise AssertionError("nothing is drawn")

        return PPOTrainer._build_replay_buffer(Stand())

    def test_built_by_verl(self):
        buffer = self.build(
            "algorithm.filter_groups.enable=True",
            "algorithm.filter_groups.metric=acc",
            "algorithm.filter_groups.max_num_gen_batches=7",
        )
        self.assertIs(type(buffer), tamis.verl.ReplayBuffer)
        self.assertEqual(buffer.settings.metric, "acc")
        self.assertEqual(buffer.settings.max_num_gen_batches, 7)
        self.assertEqual(buffer.poll_interval, 2.0)
        self.assertFalse(buffer.settings.carries)

    def test_arguments_of_the_sampler(self):
        prefix = "trainer.v1.sampler.sampler_kwargs"
        buffer = self.build(
            "trainer.v1.trainer_mode=separate_async",
            "trainer.v1.separate_async.parameter_sync_step=2",
            f"{prefix}.filter.kind=mean_range",
            f"{prefix}.filter.low=0.1",
            f"{prefix}.filter.high=0.9",
            f"{prefix}.metric=score",
            f"{prefix}.max_lag=2",
            f"{prefix}.refill=exact",
            f"{prefix}.poll_interval=0.5",
        )
        self.assertEqual(buffer.settings.filter.settings["low"], 0.1)
        self.assertEqual(buffer.settings.metric, "score")
        self.assertEqual(buffer.settings.threshold, 3)
        self.assertEqual(buffer.poll_interval, 0.5)
        self.assertEqual(buffer._num_batches_a_step, 2)
        self.assertEqual(buffer._num_steps_ahead, 1)

    def test_lines_of_the_page(self):
        page = (ROOT / "docs/verl.md").read_text()
        first, second = (
            re.findall(r"^    (\+?\S+=\S+)", fence, re.M) for fence in re.findall(r"```sh\n(.*?)```", page, re.S)
        )
        self.assertEqual((len(first), len(second)), (4, 4))
        # New keys have a plus, and no others.
        self.assertEqual([line[0] for line in first + second], ["t", "t", "a", "a", "+", "+", "+", "+"])
        buffer = self.build(*first, *(line[1:] for line in second))
        self.assertIs(type(buffer), tamis.verl.ReplayBuffer)
        self.assertEqual((buffer.settings.metric, buffer.settings.max_num_gen_batches), ("acc", 20))
        self.assertEqual(buffer.settings.filter.kind, "mean_range")

    def test_without_filter_groups(self):
        with self.assertRaisesRegex(tamis.verl.SamplerError, "filter_groups.enable=True"):
            self.build()
        self.build("data.gen_batch_size=1")
        self.build("trainer.v1.trainer_mode=colocate_async")

    def test_methods_take_what_verls_take(self):
        for method, owner in (
            ("sample", ReplayBuffer),
            ("sample", ReplayBufferAsync),
            ("wait_for_sampleable", ReplayBufferAsync),
            ("get_sampleable_count", ReplayBufferAsync),
        ):
            ours, theirs = (
                inspect.signature(getattr(cls, method)).parameters for cls in (tamis.verl.ReplayBuffer, owner)
            )
            self.assertEqual(list(ours), list(theirs), method)

    def test_base_class_takes_what_it_is_given(self):
        trainer = Trainer(lambda _: Group())
        self.assertIsInstance(trainer.buffer, ReplayBuffer)
        self.assertEqual(trainer.buffer.trainer_mode, "sync")
        with self.assertRaisesRegex(AssertionError, "max off policy"):
            Trainer(lambda _: Group(), strategy="dropp")


if __name__ == "__main__":
    unittest.main()
