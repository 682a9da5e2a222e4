"""Settings that are refused, with every reason at once, and those that verl's own settings determine."""

import subprocess
import sys
import unittest

from world import Case, Group, SamplerError, Trainer, read_settings, tamis

KWARGS = "trainer.v1.sampler.sampler_kwargs"


class Config(dict):
    """Nested settings, read like OmegaConf's."""

    __getattr__ = dict.get


def config(enable=True, metric="reward", limit=0, gen_batch_size=None, refills_failed=False, model=None):
    return Config(
        algorithm=Config(filter_groups=Config(enable=enable, metric=metric, max_num_gen_batches=limit)),
        data=Config(gen_batch_size=gen_batch_size),
        reward=Config(reward_model=Config(model or {})),
        trainer=Config(v1=Config(sampler=Config(sync_refill_failed_groups=refills_failed))),
    )


class RefusalTests(Case):
    def refused(self, asked, mode="sync", strategy="drop", of=None):
        with self.assertRaises(SamplerError) as raised:
            read_settings(asked, mode, 8, strategy, of)
        return str(raised.exception).splitlines()

    def test_each(self):
        for asked, said in {
            ("metrik", "acc"): ".metrik` is unknown: did you mean `metric`?",
            ("xyz", 1): ".xyz` is unknown: there are filter, metric, max_num_gen_batches, on_limit, refill, surplus, "
            "max_lag, poll_interval",
            ("refill", "double"): ".refill` is 'double': it is one of `expected`, `exact`",
            ("on_limit", "skip"): ".on_limit` is 'skip': it is one of `error`, `use_partial`, `keep_dropped`",
            ("surplus", "keep"): ".surplus` is 'keep': it is one of null, `discard`, `carry`",
            ("max_num_gen_batches", 0): ".max_num_gen_batches` is 0: a whole number from 1, or null: no limit",
            ("max_num_gen_batches", True): ".max_num_gen_batches` is True: a whole number from 1, or null: no limit",
            ("max_num_gen_batches", 3.0): ".max_num_gen_batches` is 3.0: a whole number from 1, or null: no limit",
            ("poll_interval", 0): ".poll_interval` is 0: seconds, above 0",
            ("poll_interval", float("inf")): ".poll_interval` is inf: seconds, above 0",
            ("poll_interval", float("nan")): ".poll_interval` is nan: seconds, above 0",
            ("filter", 3): ".filter` is 3: the name of a kind, its keys, or null: every group",
            ("filter", ("variance",)): ".filter` is ('variance',): the name of a kind, its keys, or null: every group",
            ("metric", 3): ".metric` is 3: a name that the reward function returns, or `reward`",
            ("metric", ""): ".metric` is '': a name that the reward function returns, or `reward`",
            ("max_lag", 2): ".max_lag` has no effect: no group waits for a later batch. Remove it, or set "
            f"`{KWARGS}.surplus: carry`",
        }.items():
            with self.subTest(asked=asked):
                self.assertEqual(self.refused(dict([asked])), [f"`{KWARGS}{said}"])
        # A list cannot be a part of the table above.
        (line,) = self.refused({"metric": ["acc"]})
        self.assertEqual(line, f"`{KWARGS}.metric` is ['acc']: a name that the reward function returns, or `reward`")
        lines = self.refused({"filter": {"kind": "mean_range", "low": "a", "high": 0.9}})
        self.assertIn(f"`{KWARGS}.filter`: ", lines[0])
        self.assertIn("low", "".join(lines))

    def test_of_verl(self):
        (line,) = self.refused({}, of=config(metric=["acc"]))
        self.assertTrue(line.startswith("`algorithm.filter_groups.metric` is ['acc']: a name"), line)
        for limit in (3.0, "3", True):
            (line,) = self.refused({}, of=config(limit=limit))
            said = f"`algorithm.filter_groups.max_num_gen_batches` is {limit!r}: a whole number"
            self.assertTrue(line.startswith(said), line)

    def test_combinations(self):
        for asked, said in (
            (
                {"surplus": "carry", "max_lag": -1},
                f"`{KWARGS}.max_lag` is -1: a whole number from 0, or null: verl's own",
            ),
            ({"metric": "seq_final_reward"}, "`seq_final_reward` has the KL penalty, which verl adds after the buffer"),
            (
                {"metric": "acc", "filter": {"kind": "variance", "metric": "score"}},
                f"`{KWARGS}.metric` is 'acc' and `{KWARGS}.filter.metric` is 'score': give one of them",
            ),
            (
                {"filter": {"kind": "within_group", "k": 2}},
                f"`{KWARGS}.filter`: within_group leaves members of a group out, and verl takes whole groups",
            ),
        ):
            with self.subTest(asked=asked):
                (line,) = self.refused(asked)
                self.assertTrue(line.startswith(said), line)

    def test_filters(self):
        self.assertIn("varianse", self.refused({"filter": "varianse"})[0])
        self.assertIn("`filter.p` is missing", self.refused({"filter": "top_p"})[0])
        (said,) = self.refused({"filter": {"kind": "top_p", "p": 0.5}}, "colocate_async")
        self.assertIn("top_p compares the groups of a round", said)

    def test_asynchronous_modes_carry(self):
        (said,) = self.refused({"surplus": "discard"}, "separate_async")
        self.assertIn("use `carry`, or the mode `sync`", said)

    def test_all_at_once(self):
        self.assertEqual(len(self.refused({"metrik": "acc", "refill": 2, "poll_interval": "often", "max_lag": 1})), 4)

    def test_prompts_are_drawn_one_by_one(self):
        (said,) = self.refused({}, of=config(enable=False))
        self.assertIn("set `algorithm.filter_groups.enable=True`", said)
        for of in (config(), config(enable=False, gen_batch_size=1), config(enable=False, refills_failed=True)):
            read_settings({}, "sync", 8, "drop", of)
        read_settings({}, "colocate_async", 8, "drop", config(enable=False))

    def test_rewards_are_there_before_sampling(self):
        (said,) = self.refused({}, of=config(model={"enable": True, "enable_resource_pool": False}))
        self.assertIn("`reward.reward_model.enable_resource_pool=True`", said)
        read_settings({}, "sync", 8, "drop", config(model={"enable": True, "enable_resource_pool": True}))
        read_settings(
            {"filter": None}, "sync", 8, "drop", config(model={"enable": True, "enable_resource_pool": False})
        )

    def test_without_refill(self):
        with self.assertRaisesRegex(SamplerError, "refill_fn"):
            tamis.verl.ReplayBuffer("sync", {}, 8, "drop", {})


class DefaultTests(Case):
    def test_of_verl(self):
        read = read_settings({}, "sync", 8, "drop", config(metric="acc", limit=3))
        self.assertEqual((read.metric, read.max_num_gen_batches, read.ends_if_dead), ("acc", 3, False))
        read = read_settings(
            {"metric": "score", "max_num_gen_batches": None}, "sync", 8, "drop", config(metric="acc", limit=3)
        )
        self.assertEqual((read.metric, read.max_num_gen_batches, read.ends_if_dead), ("score", None, False))
        read = read_settings(None, "sync", 8, "drop", config())
        self.assertEqual((read.metric, read.max_num_gen_batches, read.ends_if_dead), ("reward", None, True))
        # A batch that is filled up needs a limit.
        for on_limit in ("use_partial", "keep_dropped"):
            read = read_settings({"on_limit": on_limit}, "sync", 8, "drop", config())
            self.assertEqual(read.max_num_gen_batches, 10)
            read = read_settings({"on_limit": on_limit}, "sync", 8, "drop", config(limit=3))
            self.assertEqual(read.max_num_gen_batches, 3)
        read = read_settings({"filter": {"kind": "variance", "metric": "acc"}}, "sync", 8, "drop", config())
        self.assertEqual(read.metric, "acc")

    def test_age(self):
        for mode, asked, threshold in (
            ("sync", {}, None),
            ("sync", {"surplus": "carry"}, 8),
            ("colocate_async", {}, 8),
            ("colocate_async", {"max_lag": 0}, 1),
            ("separate_async", {"max_lag": 20}, 21),
        ):
            with self.subTest(mode=mode, asked=asked):
                self.assertEqual(read_settings(asked, mode, 8, "drop", None).threshold, threshold)

    def test_trainers_configuration_is_found(self):
        trainer = Trainer(lambda _: Group(), config=config(metric="score"), metric=None)
        self.assertEqual(trainer.buffer.settings.metric, "score")
        with self.assertRaisesRegex(SamplerError, "filter_groups.enable=True"):
            Trainer(lambda _: Group(), config=config(enable=False))


class ImportTests(Case):
    def test_says_what_is_missing(self):
        for name, missing, said in (
            ("tamis.verl", "transfer_queue", "pip install verl==0.9.1 TransferQueue"),
            ("tamis.slime", "slime", "tamis.slime needs slime"),
        ):
            code = f"import sys; sys.modules[{missing!r}] = None; import {name}"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
