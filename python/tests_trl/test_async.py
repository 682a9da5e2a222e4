"""The sieve in TRL's AsyncGRPOTrainer. What TRL asks of a GPU is replaced in the tests: the name of the device,
vLLM's package (it is spoken to over HTTP only), and the attention kernel."""

import asyncio
import functools
import importlib.util
import json
import os
import pickle
import queue
import re
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import safetensors.torch
import torch
from accelerate import PartialState
from datasets import Dataset
from packaging.version import Version
from toy import TRL, Case, data, digit, model, row_of, tool_tokenizer

import tamis.trl
from tamis.schedule import BeginStep, Dispatched, Judged, Scored
from tamis.trl import AttachError, NothingKept

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
try:
    import requests
    import tamis.trl.asynchronous
    import trl.experimental.async_grpo.async_grpo_trainer as trainer_module
    import trl.experimental.async_grpo.async_rollout_worker as worker_module
    from tamis.trl.asynchronous import AsyncSieve, Seen, SievedLoop
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    MISSING = None if hasattr(worker_module.AsyncRolloutWorker, "_loop_cls") else "it has no loop to step in front of"
except ImportError as error:
    MISSING = str(error)

PROGRAM = os.environ.get("TAMIS_PROGRAM")
VARIANCE = {"kind": "variance"}
WANTS = data(chat=True)["want"]


def first(given, **_):
    return [pair[0] for pair in given]


def second(given, **_):
    return [pair[1] for pair in given]


class World:
    """An environment that gives the reward itself."""

    def reset(self, **_):
        return None

    def get_reward(self):
        return 1.0


class Factory:
    def __call__(self):
        return World()


def trl_rows(number):
    """The environment that TRL makes if an environment has the data."""
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * number})


def has_signal(row):
    return row % 3 == 1


class Transfer:
    """Transfers nothing."""

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, weights):
        list(weights)

    def resume(self):
        pass

    def destroy(self):
        pass


class Flash:
    """The attention kernel."""

    @staticmethod
    def flash_attn_varlen_func(query, key, value, starts, key_starts, *_, softmax_scale, **__):
        done = []
        starts, key_starts = starts.tolist(), key_starts.tolist()
        for a, b, c, d in zip(starts[:-1], starts[1:], key_starts[:-1], key_starts[1:], strict=True):
            mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
            parts = (part.transpose(0, 1) for part in (query[a:b], key[c:d], value[c:d]))
            attended = torch.nn.functional.scaled_dot_product_attention(*parts, mask, scale=softmax_scale)
            done.append(attended.transpose(0, 1))
        return torch.cat(done)


if MISSING is None:

    class Threaded(worker_module.AsyncRolloutWorker):
        """The rollout loop in a thread of this process, with fixed answers. For rows with signal every second
        answer is right, and no other."""

        answers = staticmethod(lambda row, member: WANTS[row] if has_signal(row) and member % 2 else "x")

        def start(self):
            self.rows = []
            loop = self._loop_cls(
                **self._loop_kwargs,
                rollout_buffer=self.rollout_buffer,
                model_version_value=self._model_version_value,
                heartbeat_value=self._heartbeat_value,
                failed_event=self._failed_event,
                exception_info_queue=self._exception_info_queue,
                metrics_queue=self.metrics_queue,
            )
            calls = {}

            async def turn(prompt_ids):
                row = row_of(loop.tokenizer.decode(prompt_ids))
                member = calls[row] = calls.get(row, -1) + 1
                if member % loop.num_generations == 0:
                    self.rows.append(row)
                ids = loop.tokenizer(self.answers(row, member))["input_ids"]
                return ids, [-1.0] * len(ids)

            loop._generate_one_turn = turn
            self._heartbeat_value.value = time.time()
            self._thread = threading.Thread(target=loop.run, daemon=True)
            self._thread.start()
            worker_module._spawn_stop_watcher(loop, self._stop_event_mp)

        def stop(self):
            self._stop_event_mp.set()
            self._thread.join(30)
            for each in (self.rollout_buffer, self.metrics_queue):
                # The end of this process would wait for data that is not read any more.
                each.cancel_join_thread()


class AsyncCase(Case):
    def setUp(self):
        super().setUp()
        # TRL's logger wants it.
        PartialState()
        if MISSING is not None:
            self.skipTest(f"TRL {TRL}: {MISSING}")
        stubs = [(worker_module, "is_vllm_available", lambda *_, **__: True)]
        if Version("1.16") <= TRL:
            import trl.experimental.async_grpo.packing as packing_module

            stubs.append((trainer_module, "get_peak_flops_per_device", lambda *_: None))
            stubs.append((packing_module, "_flash_attn", lambda: Flash))
        else:
            make = trainer_module.create_model_from_path

            def on_a_cpu(*names, **keywords):
                return make(*names, **keywords | {"attn_implementation": "sdpa"})

            stubs.append((trainer_module, "create_model_from_path", on_a_cpu))
        for module, name, value in stubs:
            patched = mock.patch.object(module, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        self.model = self.folder / "model"
        made = tool_tokenizer()
        made.save_pretrained(self.model)
        model(len(made)).save_pretrained(self.model)

    def loop(self, functions, filter=VARIANCE, metric=None, kind=None, buffer=None, **keywords):
        if kind is None:
            kind = SievedLoop
            keywords["sieve"] = (tamis.Filter(**filter), metric)
        shared = SimpleNamespace(value=0)
        made = kind(
            model_name="m",
            dataset=data(chat=True),
            reward_funcs=functions,
            processing_class=tool_tokenizer(),
            **({"eos_token_ids": [1]} if Version("1.16") <= TRL else {}),
            rollout_buffer=queue.Queue() if buffer is None else buffer,
            model_version_value=shared,
            heartbeat_value=shared,
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(),
            metrics_queue=queue.Queue(),
            num_generations=4,
            **keywords,
        )
        self.addCleanup(made._loop.close)
        return made

    def group(self, given, rows_of=(1, 1, 1, 1), id=7, env_rewards=()):
        """A group whose reward functions find what they give in a column."""
        made = [
            [
                worker_module.TrainingSequence([5, 6, i, j], [0, 1, 1, 1], [0.0, -1.0, -1.0, -1.0], "")
                for j in range(num)
            ]
            for i, num in enumerate(rows_of)
        ]
        prompt = [{"role": "user", "content": "q001:"}]
        return worker_module.RolloutGroup(
            prompts=[prompt] * 4,
            reward_kwargs={"given": given},
            completions=[[{"role": "assistant", "content": str(i)}] for i in range(4)],
            completions_ids=[[6] * (i + 1) for i in range(4)],
            completions_sequences=made,
            tool_call_counts=[0] * 4,
            tool_failure_counts=[0] * 4,
            model_version=0,
            group_id=id,
            env_rewards=list(env_rewards),
            rollout_rewards=[None] * 4,
        )

    def made(self, worker=None, filter="variance", sieve=None, rows=None, transfer=None, **settings):
        """An AsyncGRPOTrainer, with the sieve attached unless `filter` is False."""
        chosen = {
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 8,
            "max_steps": 3,
            "token_budget": 0,
            "max_inflight_tasks": 16,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
        } | settings
        rows = data(chat=True) if rows is None else rows
        patched = mock.patch.object(trainer_module, "AsyncRolloutWorker", worker or Threaded)
        with patched:
            config = AsyncGRPOConfig(str(self.folder / "out"), **chosen)
            transfer = transfer or Transfer()
            trainer = AsyncGRPOTrainer(str(self.model), digit, config, rows, weight_transfer=transfer)
        patched.start()
        self.addCleanup(patched.stop)
        for callback in list(trainer.callback_handler.callbacks):
            if type(callback).__name__ in ("PrinterCallback", "ProgressCallback"):
                trainer.remove_callback(callback)
        return trainer if filter is False else tamis.trl.attach(trainer, filter, **(sieve or {}))

    def noted(self, step):
        """The row with which a run that is resumed from that checkpoint starts."""
        text = (self.folder / "out" / f"checkpoint-{step}" / "rollout_state.json").read_text()
        return json.loads(text)["prompt_index"]


class LoopTests(AsyncCase):
    """Only the rollout loop, with a queue of this process."""

    def score(self, loop, group):
        return asyncio.run(loop._score_group(group))

    def test_judged_as_in_the_synchronous_sieve(self):
        none, inf = None, float("inf")
        for filter in (VARIANCE, {"kind": "mean_range", "low": 0.1, "high": 0.9}):
            verdicts = set()
            for metric in (None, "first", "second", "length"):
                trainer = self.sieved(filter, rewards=[first, second], sieve={"metric": metric})
                for given in (
                    [(0, 0)] * 4,
                    [(1, 0), (0, 0), (0, 0), (0, 0)],
                    [(1, 0), (0, 1), (1, 0), (0, 1)],
                    [(0.1, 0.2), (0.3, 0), (0.15, 0.15), (0.2, 0.1)],
                    [(none, none), (1, 0), (1, 0), (1, none)],
                    [(none, none), (1, 0), (0, 0), (none, 0)],
                    [(none, none)] * 4,
                    [(float("nan"), 1), (none, 1), (none, 1), (0, 1)],
                    [(inf, 0), (0, 0), (0, 0), (0, 0)],
                    [(inf, -inf), (0.5, 0), (0.5, 0), (0.5, 0)],
                ):
                    with self.subTest(filter, metric=metric, given=given):
                        loop = self.loop([first, second], metric=metric, filter=filter)
                        rows = self.score(loop, self.group(given))
                        self.assertEqual(bool(rows), self.synchronous(trainer, given))
                        verdicts.add(bool(rows))
            self.assertEqual(verdicts, {True, False})

    def synchronous(self, trainer, given):
        """Whether the synchronous sieve keeps the group."""
        rewards = torch.tensor([[float("nan") if value is None else value for value in pair] for pair in given]).float()
        group = tamis.trl.sieve.Group(0, 0, 0, 0, list(rewards), [], [1, 2, 3, 4], [False] * 4)
        sieve = trainer.sieve
        scheduler = type(sieve._scheduler).restore(sieve._scheduler.snapshot())
        scheduler.handle(BeginStep())
        scheduler.handle(Dispatched([0]))
        (told,) = (each for each in scheduler.handle(Scored(0, sieve._values(group))) if isinstance(each, Judged))
        return told.kept

    def test_rows_of_kept_groups_are_trls(self):
        group = self.group([(1, 0), (0, None), (None, None), (0, 0)], rows_of=(1, 0, 2, 3))
        alone = self.score(self.loop([first, second], kind=worker_module._AsyncRolloutLoop), group)
        ours = self.score(self.loop([first, second]), group)
        self.assertEqual([told(row) for row in ours], [told(row) for row in alone])
        self.assertEqual(len(ours), 6)
        self.assertEqual(sum(map(len, group.completions_sequences)), 6)

    def test_what_is_sent(self):
        loop = self.loop([first, second])
        self.assertEqual(self.score(loop, self.group([(1, 0), (1, 0), (0, 1), (1, None)], rows_of=(0, 1, 1, 2))), [])
        self.assertEqual(loop.rollout_buffer.get_nowait(), Seen(7, [1.0] * 4, 10))
        self.assertEqual(len(self.score(loop, self.group([(1, 0), (1, 0), (0, 0), (1, None)], id=8))), 4)
        self.assertEqual(loop.rollout_buffer.get_nowait(), Seen(8, [1.0, 1.0, 0.0, 1.0], 10))

    def test_two_functions_of_one_name(self):
        """TRL has rewards by name, and the sieve needs all of them."""
        other = first.__class__(first.__code__, {}, "second")
        loop = self.loop([second, other])
        self.assertEqual(len(self.score(loop, self.group([(1, 0), (0, 0), (0, 0), (0, 0)]))), 4)
        self.assertEqual(loop.rollout_buffer.get_nowait().values, [1.0, 0.0, 0.0, 0.0])

    def test_rewards_of_environments(self):
        loop = self.loop([first], environment_factory=World, metric="World")
        given = [(1, 0), (0, 0), (0, 0), (0, 0)]
        self.assertEqual(self.score(loop, self.group(given, env_rewards=[(World, 1.0)] * 4)), [])
        rewards = [(World, 1.0), (World, 0.0), None, None]
        self.assertEqual(len(self.score(loop, self.group(given, env_rewards=rewards))), 4)

    def test_a_factory_that_is_no_class(self):
        """Only the loop knows what its factories make."""
        for factory in (lambda: World(), functools.partial(World)):
            loop = self.loop([first], environment_factory=factory, metric="World")
            given = [(1, 0), (0, 0), (0, 0), (0, 0)]
            self.assertEqual(self.score(loop, self.group(given, env_rewards=[(World, 1.0)] * 4)), [])
            self.loop([first], environment_factory=factory, metric="reward")
            with self.assertRaisesRegex(AttachError, "no reward function 'nope'; there are first, World, length"):
                self.loop([first], environment_factory=factory, metric="nope")

    def test_a_full_queue_is_waited_for(self):
        buffer = queue.Queue(1)
        loop = self.loop([first], buffer=buffer)

        async def both():
            scored = asyncio.create_task(loop._score_group(self.group([(0, 0)] * 4)))
            await asyncio.sleep(0.3)
            self.assertFalse(scored.done())
            buffer.get_nowait()
            await scored
            self.assertEqual(buffer.get_nowait().group, 7)
            buffer.put_nowait(None)
            scored = asyncio.create_task(loop._score_group(self.group([(0, 0)] * 4)))
            await asyncio.sleep(0.3)
            loop._stop_event.set()
            await asyncio.wait_for(scored, 5)

        buffer.put_nowait(None)
        asyncio.run(both())


class RunTests(AsyncCase):
    """The trainer, with the loop in a thread."""

    def figures(self, trainer, name):
        return [line[name] for line in trainer.state.log_history if name in line]

    def test_what_is_trained_on(self):
        trainer = self.fit(self.made())
        trained = {trainer.rollout_worker.rows[group] for group in trainer._trained_groups}
        self.assertGreaterEqual(len(trained), 6)
        self.assertTrue(all(map(has_signal, trained)))
        self.assertEqual(set(self.figures(trainer, "reward")), {0.5})
        self.assert_adds_up(trainer)

    def test_what_is_logged(self):
        trainer = self.fit(self.made())
        generated, kept, dropped = (
            self.figures(trainer, f"groups/{name}") for name in ("generated", "kept", "dropped")
        )
        self.assertEqual(len(generated), 3)
        self.assertEqual(generated, [sum(pair) for pair in zip(kept, dropped, strict=True)])
        self.assertGreater(min(sum(kept), sum(dropped)), 0)
        rates = [part / whole for part, whole in zip(dropped, generated, strict=True)]
        for rate, figure in zip(rates, self.figures(trainer, "train/filter_rate"), strict=True):
            self.assertAlmostEqual(rate, figure)
        for rate, figure in zip(rates, self.figures(trainer, "all/pass_rate"), strict=True):
            # Half of the answers of a kept group are right.
            self.assertAlmostEqual((1 - rate) / 2, figure)
        self.assertEqual(self.figures(trainer, "all/filter_metric/mean"), self.figures(trainer, "all/pass_rate"))

    def test_without_a_filter(self):
        trainer = self.fit(self.made(filter=None))
        self.assertEqual(sum(self.figures(trainer, "groups/dropped")), 0)
        self.assertEqual(trainer._trained_groups, set(range(len(trainer._trained_groups))))

    def test_resume(self):
        first_half = self.fit(self.made(max_steps=2, save_strategy="steps", save_steps=1))
        noted = [self.noted(step) for step in (1, 2)]
        trained = first_half._trained_groups
        self.assertGreater(noted[0], 0)
        self.assertGreater(noted[1], noted[0])
        # Without the sieve's additions TRL would record the first row again.
        self.assertNotIn(0, trained)
        self.assertFalse(trained & first_half.sieve._dropped)
        over = trained | first_half.sieve._dropped
        self.assertEqual([group for group in range(noted[1]) if group not in over], [])
        self.assertNotIn(noted[1], over)

        second_half = self.made(max_steps=4)
        self.fit(second_half, resume_from_checkpoint=str(self.folder / "out" / "checkpoint-2"))
        self.assertEqual(second_half.rollout_worker.rows[0], noted[1] % 64)
        self.assertEqual(second_half._groups_before_resume, len([group for group in trained if group < noted[1]]))
        rows = second_half.rollout_worker.rows
        self.assertTrue(all(has_signal(rows[group]) for group in second_half._trained_groups))
        totals = second_half.sieve.totals
        self.assertGreater(totals["trained"]["groups"], len(trained))
        self.assertGreater(totals["generated"]["groups"], noted[1])
        self.assert_adds_up(second_half)

    def test_a_checkpoint_of_trl_alone(self):
        alone = self.fit(self.made(filter=False, max_steps=1, save_strategy="steps", save_steps=1))
        noted = self.noted(1)
        self.assertGreater(noted, 0)
        checkpoint = self.folder / "out" / "checkpoint-1"
        with_sieve = self.made(max_steps=2, save_strategy="steps", save_steps=1)
        self.fit(with_sieve, resume_from_checkpoint=str(checkpoint))
        self.assertEqual(with_sieve.rollout_worker.rows[0], noted)
        before = [group for group in with_sieve._trained_groups if noted + group < self.noted(2)]
        num_trained = noted + len(before)
        self.assertGreater(self.noted(2), num_trained)
        # TRL continues without the sieve, and the sieve's state that it passes on is not that of its own checkpoint.
        alone = self.made(filter=False, max_steps=3, save_strategy="steps", save_steps=1)
        self.fit(alone, resume_from_checkpoint=str(self.folder / "out" / "checkpoint-2"))
        again = self.made(max_steps=4)
        self.fit(again, resume_from_checkpoint=str(self.folder / "out" / "checkpoint-3"))
        self.assertEqual(again._groups_before_resume, self.noted(3))
        resumed = self.made(max_steps=3)
        self.fit(resumed, resume_from_checkpoint=str(self.folder / "out" / "checkpoint-2"))
        self.assertEqual(resumed._groups_before_resume, num_trained)

    def fed(self, groups, **keywords):
        """A sieve that has read these groups, each kept or not, and then a row."""
        rows = [[0.0] * 4, [0.0, 1.0, 0.0, 0.0]]
        trainer = self.made(**keywords)
        trainer.sieve._queue = queue.Queue()
        for group, is_kept in groups:
            trainer.sieve._queue.put(Seen(group, rows[is_kept], 8))
        trainer.sieve._queue.put("a row")
        self.assertEqual(trainer.rollout_queue.qsize(), len(groups) + 1)
        self.assertEqual(trainer.rollout_queue.get_nowait(), "a row")
        with self.assertRaises(queue.Empty):
            trainer.rollout_queue.get_nowait()
        self.assertTrue(trainer.rollout_queue.empty())
        return trainer

    def test_what_a_resumed_run_does_not_make_again(self):
        sieve = self.fed(((1, 1), (0, 0), (4, 1), (2, 1), (5, 0), (6, 1))).sieve
        self.assertEqual(sieve.over(set()), {0, 5})
        self.assertEqual(sieve.over({4}), {1, 0, 4, 5})
        self.assertEqual(sieve.over({6, 1}), {1, 0, 4, 2, 5, 6})

    def test_every_group_is_counted_over_passes_of_the_data(self):
        groups = [(group, int(group % 5 == 2)) for group in range(4 * 64 + 3)]
        kept = {group for group, is_kept in groups if is_kept}
        trainer = self.fed(groups)
        self.assertEqual(trainer.sieve._dropped, {group for group, _ in groups} - kept)
        counts = {
            place: {"groups": num, "trajectories": 4 * num, "tokens": 8 * num}
            for place, num in (("generated", 259), ("trained", len(kept)), ("dropped", 259 - len(kept)))
        }
        self.assertEqual(trainer.sieve.totals, counts | {"dropped/all_wrong": counts["dropped"]})
        metrics = trainer._metrics["train"]
        self.assertEqual(sum(part for part, _ in metrics["train/filter_rate"]), 259 - len(kept))
        self.assertEqual(sum(part for part, _ in metrics["all/pass_rate"]), len(kept))
        self.assertEqual(sum(whole for _, whole in metrics["all/pass_rate"]), 4 * 259)

    def test_groups_that_are_made_again_count_once(self):
        """Two of five trained groups come before the first gap, at which the resumed run starts."""
        trainer = self.fed(((0, 1), (1, 0), (2, 1), (5, 1), (6, 1), (7, 1), (4, 1), (3, 0)))
        trainer._trained_groups = trained = {0, 2, 5, 6, 7}
        trainer._groups_before_resume = 10
        self.assertEqual(trainer.sieve.over(trained), {0, 1, 2, 3, 5, 6, 7})
        base = trainer_module.AsyncGRPOTrainer
        with mock.patch.object(base, "_save_checkpoint", lambda it, model, trial: seen.append(it._trained_groups)):
            seen = []
            trainer._save_checkpoint(None, None)
        self.assertEqual(seen, [{0, 1, 2, 3, 5, 6, 7}])
        self.assertIs(trainer._trained_groups, trained)
        self.assertEqual(trainer.sieve.state()["trained"], 12)

    def test_a_stale_group_does_not_hold_the_place(self):
        trainer = self.fit(self.made(max_steps=4, max_staleness=0, save_strategy="steps", save_steps=4))
        self.assertGreater(sum(self.figures(trainer, "sample/dropped_stale_total")), 0)
        over = trainer._trained_groups | trainer.sieve._dropped
        thrown_away = min(set(range(999)) - over)
        self.assertLess(thrown_away, max(trainer._trained_groups) - 4)
        self.assertGreater(self.noted(4), thrown_away)

    def test_epochs_count_trained_groups(self):
        rows = data(chat=True).select(range(6))
        settings = {"max_steps": -1, "num_train_epochs": 2, "rows": rows, "save_strategy": "steps", "save_steps": 1}
        trainer = self.fit(self.made(**settings))
        self.assertGreaterEqual(len(trainer._trained_groups), 12)
        self.assertGreater(len(trainer.rollout_worker.rows), 3 * 12 - 4)
        steps = trainer.state.global_step
        self.assertGreater(self.noted(3), 12)
        resumed = self.fit(self.made(**settings), resume_from_checkpoint=str(self.folder / "out" / "checkpoint-3"))
        self.assertAlmostEqual(resumed.state.global_step, steps, delta=2)

    def test_nothing_kept(self):
        class Wrong(Threaded):
            answers = staticmethod(lambda row, member: "x")

        trainer = self.made(worker=Wrong, sieve={"schedule": {"max_num_gen_batches": 3, "gen_batch_size": 5}})
        with self.assertRaises(NothingKept) as raised:
            self.fit(trainer)
        message = str(raised.exception)
        first = "stopped: none of 15 groups in a row was kept (max_num_gen_batches = 3, gen_batch_size = 5)"
        self.assertEqual(message.splitlines()[0], first)
        for text in ("by `reward`, of 15 groups", "         15  100.0%  all wrong", "`train_dataset`"):
            self.assertIn(text, message)
        for text in ("round", "rollouts/", "data.", "of 1 groups", "in step"):
            self.assertNotIn(text, message)
        told = raised.exception.diagnosis
        self.assertEqual((told["tally"]["groups"], told["tally"]["all_wrong"]), (15, 15))
        self.assertEqual((told["rounds"], told["max_num_gen_batches"], told["gen_batch_size"]), (3, 3, 5))
        self.assertTrue(told["recommendations"])
        self.assertEqual(trainer.state.global_step, 0)
        self.assertFalse(trainer.rollout_worker._thread.is_alive())

    def test_the_limit(self):
        for schedule, samples, limit in (
            (None, 4, 320),
            ({"max_num_gen_batches": 10}, 4, 320),
            ({"max_num_gen_batches": 2}, 4, 64),
            ({"gen_batch_size": 1}, 4, 10),
            ({"max_num_gen_batches": 2, "gen_batch_size": 3}, 4, 6),
            (None, 160, 400),
        ):
            with self.subTest(schedule, samples=samples):
                groups = [(0, 0), (1, 1), *((group, 0) for group in range(2, limit + 1))]
                keywords = {"sieve": {"schedule": schedule}, "per_device_train_batch_size": samples}
                sieve = self.fed(groups, **keywords).sieve
                sieve._queue.put(Seen(999, [0.0] * 4, 8))
                with self.assertRaisesRegex(NothingKept, f"none of {limit} groups in a row was kept"):
                    sieve.get_nowait()

    def test_a_healthy_run_does_not_end(self):
        """One of 16 rows has signal, and a step has one group."""

        class Rare(Threaded):
            answers = staticmethod(lambda row, member: WANTS[row] if row % 16 == 9 and member % 2 else "x")

        trainer = self.fit(self.made(worker=Rare, per_device_train_batch_size=4))
        self.assertEqual(trainer.state.global_step, 3)
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 30)

    def test_other_settings_at_resume(self):
        self.fit(self.made(max_steps=1, save_strategy="steps", save_steps=1))
        folder = self.folder / "out" / "checkpoint-1"
        for keywords, text in (
            ({"filter": {"kind": "mean_range", "low": 0.1, "high": 0.9}}, "`filter` is "),
            ({"sieve": {"metric": "digit"}}, "`metric` is digit and was reward"),
            ({"num_generations": 2}, "`num_generations` is 2 and was 4"),
            ({"rows": data(70, chat=True)}, "`rows` is 70 and was 64"),
        ):
            with self.subTest(text), self.assertRaises(AttachError) as raised:
                self.fit(self.made(**keywords), resume_from_checkpoint=str(folder))
            self.assertIn("the checkpoint's sieve has other settings: ", str(raised.exception))
            self.assertIn(text, str(raised.exception))
        for keywords in (
            {"sieve": {"schedule": {"max_num_gen_batches": 50, "gen_batch_size": 7}}},
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
        ):
            with self.subTest(keywords):
                resumed = self.fit(self.made(max_steps=2, **keywords), resume_from_checkpoint=str(folder))
                self.assertEqual(resumed.state.global_step, 2)
        state = json.loads((folder / "trainer_state.json").read_text())
        del state["stateful_callbacks"]["TamisSieve"]["attributes"]["saved"]["trained"]
        (folder / "trainer_state.json").write_text(json.dumps(state))
        with self.assertRaisesRegex(AttachError, "the checkpoint's state of the sieve cannot be read"):
            self.fit(self.made(), resume_from_checkpoint=str(folder))

    def test_rows_that_trl_makes_are_not_compared(self):
        """Their number is that of a step's samples."""
        rows = trl_rows(8)
        sieve = self.made(rows=rows).sieve
        self.made(rows=trl_rows(6)).sieve.restore(sieve.state())

    def test_what_goes_to_the_other_process(self):
        trainer = self.made(filter={"kind": "mean_range", "low": 0.1, "high": 0.9}, sieve={"metric": "digit"})
        worker = trainer.rollout_worker
        kind, keywords = pickle.loads(pickle.dumps((worker._loop_cls, worker._loop_kwargs)))
        self.assertIs(kind, SievedLoop)
        judge, metric = keywords["sieve"]
        self.assertEqual((judge.settings["low"], metric), (0.1, "digit"))
        seen = pickle.loads(pickle.dumps(Seen(3, [0.0, 1.0], 5)))
        self.assertEqual(seen, Seen(3, [0.0, 1.0], 5))


class PageTests(AsyncCase):
    def test_the_line_of_the_page(self):
        page = (Path(__file__).parents[2] / "docs/trl.md").read_text()
        (line,) = re.findall(r"AsyncGRPOConfig\(\"out\"\), data\)\n(tamis\.trl\.attach\(.*\))\n", page)
        # As many groups a step as the settings of TRL have: one.
        trainer = self.made(filter=False, num_generations=8)
        exec(line, {"tamis": tamis, "trainer": trainer})
        settings = trainer.sieve.settings
        limit = settings["max_num_gen_batches"] * settings["gen_batch_size"]
        self.assertEqual((settings["max_num_gen_batches"], limit), (10, 320))
        said = f"or {settings['gen_batch_size']} if these are fewer: with the lines above {limit} groups"
        self.assertIn(said, " ".join(page.split()))


class RefusalTests(AsyncCase):
    def test_arguments(self):
        trainer = self.made(filter=False)
        for arguments, keywords, reason in (
            (({"kind": "top_k", "k": 2},), {}, "`filter: top_k` compares groups"),
            (({"kind": "within_group", "k": 2},), {}, "`filter: within_group`: TRL computes a group's advantages"),
            (("nope",), {}, "`filter`: "),
            ((), {"metric": "nope"}, "there is no reward function 'nope'; there are digit, length"),
            ((), {"record": self.folder / "r"}, "`record`: dropped completions stay in the rollout process"),
            ((), {"seed": 1}, "`seed`: TRL's rollout loop takes the prompts in the order of the data"),
            ((), {"seed": "x"}, "`seed` is of type str"),
            ((), {"schedule": {"on_limit": "keep_dropped"}}, "`schedule.on_limit: keep_dropped`: there is no batch"),
            ((), {"schedule": {"filter": "variance"}}, "`schedule.filter`: it is an argument of `attach`"),
            ((), {"schedule": {"max_num_gen_batches": 0}}, "`schedule.max_num_gen_batches` is 0: give a whole"),
            ((), {"schedule": {"max_num_gen_batches": None}}, "`schedule.max_num_gen_batches` is None: give"),
            ((), {"schedule": {"gen_batch_size": True}}, "`schedule.gen_batch_size` is True: give"),
            ((), {"schedule": {"gen_batch_size": "4"}}, "`schedule.gen_batch_size` is '4': give"),
        ):
            with self.subTest(reason):
                told = self.reasons(trainer, *arguments, **keywords)
                self.assertEqual(len([line for line in told if line.startswith("`")]), 1, told)
                self.assertIn(reason, told[0])
        for key in ("mode", "refill", "surplus", "total_steps", "n", "max_rounds"):
            with self.subTest(key):
                (told,) = self.reasons(trainer, schedule={key: 1})
                self.assertIn(f"`schedule.{key}`: TRL draws prompts and trains on groups as they come", told)

    def test_trainers(self):
        class Own(worker_module._AsyncRolloutLoop):
            pass

        for change, reason in (
            (lambda it: setattr(it.rollout_worker, "_loop_cls", Own), "TRL's own rollout loop, and this is Own"),
            (lambda it: setattr(it, "rollout_worker", SimpleNamespace()), "rollout loop, and this is SimpleNamespace"),
            (lambda it: setattr(it.rollout_worker, "_process", object()), "`rollout_worker` was started"),
            (lambda it: setattr(it, "is_in_train", True), "`train()` is running"),
            (lambda it: it.rollout_worker._loop_kwargs.update(num_generations=1), "`num_generations` is 1"),
            (lambda it: setattr(it, "train_dataset", it.train_dataset.to_iterable_dataset()), "no length"),
        ):
            with self.subTest(reason):
                trainer = self.made(filter=False)
                change(trainer)
                (told,) = self.reasons(trainer)
                self.assertIn(reason, told)
        trainer = self.made()
        with self.assertRaisesRegex(AttachError, "has a sieve already"):
            tamis.trl.attach(trainer)

    def test_subclasses(self):
        def own(self, *arguments):
            return getattr(super(type(self), self), name)(*arguments)

        for name, is_refused in (("get_train_dataloader", True), ("_prepare_inputs", False)):
            trainer = self.made(filter=False)
            trainer.__class__ = type("Own", (AsyncGRPOTrainer,), {name: own})
            if is_refused:
                (told,) = self.reasons(trainer)
                self.assertIn("Own.get_train_dataloader is your own", told)
            else:
                tamis.trl.attach(trainer)

    def test_a_worker_of_your_own(self):
        """One of TRL's class, made with only what it needs."""
        trainer = self.made(filter=False)
        for given, n in (({"num_generations": 6}, 6), ({}, 8)):
            worker = worker_module.AsyncRolloutWorker(reward_funcs=[digit], dataset=trainer.train_dataset, **given)
            trainer = self.made(filter=False)
            trainer.rollout_worker, trainer.rollout_queue = worker, worker.rollout_buffer
            tamis.trl.attach(trainer, metric="digit")
            self.assertEqual(trainer.sieve.settings["num_generations"], n)

    def test_all_at_once(self):
        trainer = self.made(filter=False)
        trainer.is_in_train = True
        schedule = {"mode": "rounds", "surplus": "carry", "on_limit": "duplicate", "max_num_gen_batches": 0}
        told = self.reasons(trainer, {"kind": "top_k", "k": 2}, metric="nope", record="r", seed=3, schedule=schedule)
        starts = ["`train()`", "`record`", "`seed`", "`metric`", "`filter: top_k`", "`schedule.mode`"]
        starts += ["`schedule.surplus`", "`schedule.on_limit: duplicate`", "`schedule.max_num_gen_batches` is 0"]
        self.assertEqual([start for start in starts if not any(line.startswith(start) for line in told)], [])

    def test_names_of_rewards(self):
        worker = self.made(filter=False).rollout_worker
        for factory, names in (
            (World, ["digit", "World"]),
            ({"a": World, "b": World, "c": dict}, ["digit", "World"]),
            (None, ["digit"]),
            (functools.partial(World), ["digit", "World"]),
            ({"a": functools.partial(dict, a=1)}, ["digit"]),
            (Factory(), None),
            (lambda: World(), None),
        ):
            worker._loop_kwargs["environment_factory"] = factory
            self.assertEqual(tamis.trl.asynchronous._reward_names(worker), names)

    def test_a_process_without_rollouts(self):
        """All but the main one have no loop: the same is refused there, and no more."""
        trainer = self.made(filter=False)
        trainer.rollout_worker = trainer.rollout_queue = None
        self.assertIn("`seed`", self.reasons(trainer, metric="digit", seed=3)[0])
        tamis.trl.attach(trainer, metric="digit")
        self.assertEqual(trainer.sieve.totals["generated"]["groups"], 0)

    def test_a_loop_that_moved(self):
        trainer = self.made(filter=False)
        moved = lambda self, group, more: None  # noqa: E731
        with mock.patch.object(worker_module._AsyncRolloutLoop, "_score_group", moved):
            (told,) = self.reasons(trainer)
        self.assertIn(f"_AsyncRolloutLoop._score_group of TRL {TRL} has the parameters self, group, more", told)
        self.assertIn(tamis.trl.errors.TESTED_ASYNCHRONOUS, told)
        del trainer._trained_groups
        self.assertIn(f"_trained_groups of an AsyncGRPOTrainer is missing in TRL {TRL}", self.reasons(trainer)[0])

    def test_said_when_attached(self):
        with self.assertLogs("tamis.trl", "WARNING") as logged:
            self.made()
        for text in ("AsyncGRPOTrainer trains on groups", "max_grad_norm", "`max_inflight_tasks` (16)"):
            self.assertIn(text, logged.output[0])


class OtherVersionTests(unittest.TestCase):
    def test_refused_by_name(self):
        """A TRL whose rollout loop is elsewhere, or is as if."""
        if str(TRL) in tamis.trl.errors.TESTED_ASYNCHRONOUS and importlib.util.find_spec("multidict"):
            self.assertIsNone(MISSING)
        kind = type("AsyncGRPOTrainer", (), {})
        hidden = {"tamis.trl.asynchronous": None} if MISSING is None else {}
        with mock.patch.dict(sys.modules, hidden), self.assertRaises(AttachError) as raised:
            tamis.trl.attach(kind())
        self.assertIn(f"in TRL {TRL} was moved", str(raised.exception))
        self.assertIn(f"versions that work are {tamis.trl.errors.TESTED_ASYNCHRONOUS}", str(raised.exception))


class Folder(Transfer):
    """Hands weights to `tamis serve` through the model's folder."""

    def __init__(self, url, folder):
        self.url, self.folder, self.sent = url, folder, 0

    def post(self, route, **keywords):
        requests.post(f"{self.url}{route}", timeout=60, **keywords).raise_for_status()

    def pause(self):
        self.post("/pause", params={"mode": "keep"})

    def send_weights(self, weights):
        kept = {name: weight.contiguous().clone() for name, weight in weights}
        safetensors.torch.save_file(kept, self.folder / "model.safetensors")
        asked = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        self.post("/collective_rpc", json=asked)
        self.sent += 1

    def resume(self):
        self.post("/resume")


class ServerTests(AsyncCase):
    @unittest.skipUnless(PROGRAM, "TAMIS_PROGRAM names no program")
    def test_a_run(self):
        """The loop in its own process, asking a server."""
        command = [PROGRAM, "serve", self.model, "--served-model-name", self.model, "--port", "0", "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = next(line.split()[-1] for line in server.stdout if "listening on" in line)
                settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "learning_rate": 1e-3}
                transfer = Folder(url, self.model)
                worker = worker_module.AsyncRolloutWorker
                trainer = self.made(worker=worker, transfer=transfer, vllm_server_base_url=url, **settings)
                self.fit(trainer)
            finally:
                server.terminate()
        self.assertEqual(transfer.sent, 3)
        lines = [line for line in trainer.state.log_history if "loss" in line]
        # Weights that the server samples with are the trainer's.
        self.assertAlmostEqual(lines[0]["ratio"], 1, places=3)
        for line in lines:
            self.assertGreater(line["reward_std"], 0.4)
        self.assertGreater(sum(line["groups/dropped"] for line in lines), 0)
        self.assertGreater(self.noted(1), 0)
        over = trainer._trained_groups | trainer.sieve._dropped
        self.assertEqual(self.noted(2), min(set(range(999)) - over))
        self.assert_adds_up(trainer)


def told(row):
    """All of a row, as text: NaN is equal to itself there."""
    return {name: repr(getattr(row, name)) for name in row.__slots__}


if __name__ == "__main__":
    unittest.main()
