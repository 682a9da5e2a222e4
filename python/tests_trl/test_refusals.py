"""What a sieve cannot work with is refused when it is attached, all of it at once, each with its reason."""

import importlib
import subprocess
import sys
import unittest
from pathlib import Path

import trl
from packaging.version import Version
from toy import TRL, Case, data, digit

import tamis.trl
from tamis.trl import AttachError


class RefusalTests(Case):
    def test_values_of_the_schedule(self):
        for key, value, reason in [
            ("mode", "streaming", "whole batches"),
            ("on_limit", "use_partial", "batches of one size"),
            ("on_limit", "skip", "batches of one size"),
            ("on_empty_round", "skip", "always trains on a batch"),
            ("on_exhausted", "use_partial", "TRL decides when training ends"),
            ("on_exhausted", "stop", "TRL decides when training ends"),
            ("surplus", "carry", "sampled by the weights of now"),
            ("refill", False, "batches of one size"),
            ("rounds_in_flight", 2, "one batch at a time"),
            ("screen_first", 2, "at once"),
            ("order", "completion", "whole rounds"),
            ("early_updates", False, "before it trains"),
            ("selector", {"kind": "posterior"}, "TRL's own order"),
            ("train_batch_size", 4, "`generation_batch_size`"),
            ("n", 4, "`num_generations`"),
            ("total_steps", 4, "`max_steps`"),
            ("total_epochs", 4, "`num_train_epochs`"),
            ("ppo_mini_batch_size", 4, "`per_device_train_batch_size`"),
            ("filter", "variance", "argument of `attach`"),
            ("max_num_gen_batches", 0, "max_num_gen_batches"),
            ("max_rounds", 4, "max_rounds"),
        ]:
            with self.subTest(key, value=value):
                told = self.reasons(self.trainer(), schedule={key: value})
                self.assertIn("schedule", told[0])
                self.assertIn(key, told[0])
                self.assertIn(reason, told[0])

    def test_values_that_are_the_default_are_no_reason(self):
        trainer = self.trainer()
        tamis.trl.attach(
            trainer,
            schedule={
                "on_limit": "error",
                "on_exhausted": "next_epoch",
                "surplus": "discard",
                "refill": True,
                "rounds_in_flight": 1,
                "screen_first": None,
                "order": "dispatch",
                "selector": {"kind": "shuffle"},
            },
        )
        self.assertEqual(trainer.sieve.totals["generated"]["groups"], 0)

    def test_filters_and_metrics(self):
        for arguments, keywords, reason in [
            (("nope",), {}, "`filter`: "),
            (({"kind": "variance", "tolerances": 1},), {}, "`filter`: "),
            ((), {"metric": "nope"}, "there is no reward function 'nope'; there are digit, length"),
            (({"kind": "variance", "metric": "digit"},), {"metric": "length"}, "give one of them"),
        ]:
            with self.subTest(reason):
                self.assertIn(reason, self.reasons(self.trainer(), *arguments, **keywords)[0])

    @unittest.skipIf(Version("1.6") <= TRL, "this TRL has rewards that it leaves out")
    def test_filters_of_later_versions(self):
        told = self.reasons(self.trainer(), {"kind": "within_group", "k": 2})
        self.assertEqual(len(told), 1)
        self.assertIn("`filter: within_group` needs TRL 1.6", told[0])

    def test_metrics_of_two_meanings(self):
        def length(completions, **_):
            return [0.0] * len(completions)

        for rewards, metric, reason in (
            (length, "length", "`metric`: 'length' is a reward function, and the number of tokens: rename the first"),
            ([digit, digit], "digit", "`metric`: there are 2 reward functions 'digit': rename them"),
        ):
            with self.subTest(metric):
                self.assertEqual(self.reasons(self.trainer(rewards=rewards), metric=metric), [reason])
                tamis.trl.attach(self.trainer(rewards=rewards))

    def test_other_arguments(self):
        for keywords, reason in [
            ({"record": ""}, "`record` is empty: name a folder"),
            ({"record": 3}, "`record` is of type int: give the path of a folder"),
            ({"schedule": "deficit"}, "`schedule` is of type str: give a dictionary of its keys"),
            ({"schedule": ["deficit"]}, "`schedule` is of type list: give a dictionary of its keys"),
            ({"seed": "x"}, "`seed` is of type str: give a whole number from 0 on"),
            ({"seed": 1.5}, "`seed` is of type float: give a whole number from 0 on"),
            ({"seed": True}, "`seed` is of type bool: give a whole number from 0 on"),
            ({"seed": -1}, "`seed` is -1: give a whole number from 0 to 18446744073709551615"),
            ({"seed": 2**64}, "`seed` is 18446744073709551616: give a whole number from 0 to 18446744073709551615"),
            ({"metric": ["digit"]}, "`metric` is of type list: give the name of a reward function, or `length`"),
            (
                {"filter": len},
                "`filter` is of type builtin_function_or_method: give a kind by its name, a dictionary of its keys, "
                "or a `tamis.Filter`",
            ),
            (
                {"filter": ["variance"]},
                "`filter` is of type list: give a kind by its name, a dictionary of its keys, or a `tamis.Filter`",
            ),
        ]:
            with self.subTest(**keywords):
                self.assertEqual(self.reasons(self.trainer(), **keywords), [reason])
        self.assertEqual(len(self.reasons(self.trainer(rows=data(3)), seed="x", record=3)), 3)

    def test_trainers(self):
        def rollout(prompts, trainer):
            raise NotImplementedError

        class Sampling(trl.GRPOTrainer):
            def _get_train_sampler(self, dataset=None):
                return super()._get_train_sampler(dataset)

        with self.subTest("own sampler"):
            self.assertIn("Sampling._get_train_sampler is your own", self.reasons(self.trainer(cls=Sampling))[0])
        with self.subTest("own rows"):

            class Preparing(trl.GRPOTrainer):
                def _prepare_inputs(self, inputs):
                    return super()._prepare_inputs(inputs)

            self.assertIn("Preparing._prepare_inputs is your own", self.reasons(self.trainer(cls=Preparing))[0])
        with self.subTest("other rows"):
            trainer = tamis.trl.attach(self.trainer())
            trainer.train_dataset = data(8)
            with self.assertRaisesRegex(AttachError, "`train_dataset` was replaced after the sieve was attached"):
                self.fit(trainer)
        with self.subTest("stream"):
            stream = data().to_iterable_dataset()
            trainer = self.trainer(train_dataset=data())
            trainer.train_dataset = stream
            self.assertIn("no length", self.reasons(trainer)[0])
        with self.subTest("few rows"):
            self.assertIn("has 3 rows, and a generation batch takes 4", self.reasons(self.trainer(rows=data(3)))[0])
        with self.subTest("rollout_func"):
            self.assertIn("`rollout_func`", self.reasons(self.trainer(rollout_func=rollout))[0])
        with self.subTest("auto_find_batch_size"):
            # TRL refuses it by itself from some version on.
            trainer = self.trainer()
            trainer.args.auto_find_batch_size = True
            self.assertIn("`auto_find_batch_size`", self.reasons(trainer)[0])
        for module, name, reason in (
            ("grpo_with_replay_buffer", "GRPOWithReplayBuffer", "replaces groups without signal itself"),
            ("gfpo", "GFPO", "drops members of each group itself"),
        ):
            with self.subTest(name):
                try:
                    found = importlib.import_module(f"trl.experimental.{module}")
                except ImportError:
                    continue
                kind, config = (getattr(found, f"{name}{part}") for part in ("Trainer", "Config"))
                self.assertIn(reason, self.reasons(self.trainer(cls=kind, config=config))[0])

    def test_other_trainers(self):
        class Trainer:
            pass

        with self.assertRaisesRegex(AttachError, "Trainer: it is no GRPOTrainer, RLOOTrainer or AsyncGRPOTrainer of"):
            tamis.trl.attach(Trainer())

    def test_twice(self):
        trainer = tamis.trl.attach(self.trainer())
        with self.assertRaisesRegex(AttachError, "has a sieve already"):
            tamis.trl.attach(trainer)

    def test_all_at_once(self):
        class Moved(trl.GRPOTrainer):
            def _generate(self, prompts, more=None):
                return super()._generate(prompts)

        trainer = self.trainer(cls=Moved, rows=data(2))
        trainer.args.auto_find_batch_size = True
        file = self.folder / "file"
        file.touch()
        told = self.reasons(
            trainer,
            metric="nope",
            record=file,
            schedule={"mode": "streaming", "surplus": "carry", "n": 3, "max_num_gen_batches": 0},
        )
        starts = [
            "Moved._generate",
            "`auto_find_batch_size`",
            "`train_dataset`",
            "`record`",
            "`metric`",
            "`schedule.mode",
            "`schedule.surplus",
            "`schedule.n",
            "`schedule`: ",
        ]
        found = [next((line for line in told if line.startswith(start)), None) for start in starts]
        self.assertNotIn(None, found, told)

    def test_while_it_trains(self):
        trainer = self.trainer()
        trainer.is_in_train = True
        self.assertIn("`train()` is running", self.reasons(trainer)[0])

    def test_said_when_attached(self):
        with self.assertLogs("tamis.trl", "WARNING") as logged:
            tamis.trl.attach(self.trainer(beta=0.1))
        told = logged.output[0]
        for text in (
            "GRPOTrainer trains on groups that the filter keeps",
            "max_grad_norm",
            "KL term",
            "An epoch of TRL is still 16 generation batches",
        ):
            self.assertIn(text, told)
        with self.assertLogs("tamis.trl", "WARNING") as logged:
            tamis.trl.attach(self.trainer(beta=0.1), None)
        self.assertEqual(logged.records[0].getMessage(), "GRPOTrainer trains on every group.")


class ImportTests(unittest.TestCase):
    def test_without_trl(self):
        """The error names what is missing and how to get it."""
        code = "import sys; sys.modules['trl'] = None; import tamis; print('package'); import tamis.trl"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout, "package\n")
        self.assertIn("ImportError: tamis.trl needs TRL with what TRL needs (`pip install trl`)", done.stderr)

    def test_needs_nothing_else(self):
        """No module of the package, without TRL's own requirements, imports PyTorch or numpy."""
        code = "import sys; import tamis; print(sorted({'torch', 'numpy', 'trl'} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "[]\n")
        sources = list(Path(tamis.trl.__file__).parent.glob("*.py"))
        self.assertGreater(len(sources), 5)
        for source in sources:
            self.assertNotIn("import numpy", source.read_text(), source.name)


if __name__ == "__main__":
    unittest.main()
