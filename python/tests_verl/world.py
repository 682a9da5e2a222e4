"""Shared by the tests: a queue with a clock of its own, a trainer's loop around it, and stand-ins for verl if it
is not installed."""

import contextlib
import importlib.util
import logging
import pathlib
import sys
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _stand_ins():
    """As much of verl as tamis.verl imports: a constructor that keeps its arguments, validation that names itself."""

    class ReplayBuffer:
        def __init__(self, **arguments):
            vars(self).update(arguments)

        def sample(self, global_steps, partition_id, batch_size):
            return ("verl's own", partition_id, batch_size), {}

    keyed = types.ModuleType("verl.trainer.ppo.v1.replay_buffer")
    keyed.ReplayBuffer = ReplayBuffer
    keyed.DAPO_FILTERED_REWARD_COUNTS_KEY = "_dapo_filtered_reward_counts"
    skip = types.ModuleType("verl.utils.skip")
    skip.SkipManager = types.SimpleNamespace(annotate_tq=lambda **_: lambda call: call)
    queue = types.ModuleType("transfer_queue")
    queue.KVBatchMeta = types.SimpleNamespace
    for made in (keyed, skip, queue):
        name = made.__name__
        sys.modules[name] = made
        while "." in name:
            name, _, child = name.rpartition(".")
            parent = sys.modules.setdefault(name, types.ModuleType(name))
            setattr(parent, child, sys.modules[f"{name}.{child}"])


HAS_VERL = all(importlib.util.find_spec(name) for name in ("verl", "transfer_queue", "tensordict"))
if not HAS_VERL:
    _stand_ins()

import tamis.verl  # noqa: E402
from tamis.verl import NothingKept, SamplerError  # noqa: E402, F401
from tamis.verl import buffer as module  # noqa: E402
from tamis.verl.settings import read_settings  # noqa: E402, F401

logging.disable(logging.CRITICAL)


class Scores(list):
    """The scores of a completion's tokens, as a tensor has them."""

    def sum(self):
        return sum(self)


class Queue:
    """The calls of TransferQueue that a buffer makes, and the clock that it sleeps by. What is not there cannot be read
    or removed."""

    def __init__(self):
        self.now = 0.0
        self.num_sleeps = 0
        self.partitions = {}
        self.values = {}
        self.removed = []

    def sleep(self, seconds):
        self.now += seconds
        self.num_sleeps += 1
        if self.num_sleeps > 100_000:
            raise AssertionError("the buffer never ends")

    def time(self):
        return self.now

    def put(self, key, tag, value=None, partition="train"):
        self.partitions.setdefault(partition, {}).setdefault(key, {}).update(tag)
        if value is not None:
            self.values[key] = value

    def kv_list(self):
        if not self.partitions:
            return None
        return {name: {key: dict(tag) for key, tag in keys.items()} for name, keys in self.partitions.items()}

    def kv_batch_get(self, keys, partition_id, select_fields):
        for key in keys:
            if key not in self.partitions[partition_id]:
                raise ValueError(f"no key {key}")
            if missing := [field for field in select_fields if field not in self.values[key]]:
                raise ValueError(f"{key} has no {missing}")
        return {field: [self.values[key][field] for key in keys] for field in select_fields}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            del self.partitions[partition_id][key]
            self.values.pop(key, None)
            self.removed.append(key)


class Group:
    """The course of a prompt: when it ends, how, and the metric of each member. A member with the value `no`
    has no row, one with `None` no metric."""

    def __init__(self, values=(0.0, 1.0), seconds=1.0, status="finished", num_outputs=1):
        self.values = values
        self.seconds = seconds
        self.status = status
        self.num_outputs = num_outputs

    @property
    def has_signal(self):
        scored = [value for value in self.values if isinstance(value, float) and value == value]
        return self.status == "finished" and len(set(scored)) > 1


class Trainer:
    """verl's trainer as far as a buffer sees it: a step's prompts, its batches, what they are cleared of afterwards."""

    def __init__(self, draw, mode="sync", batch_size=4, parts=1, ahead=1, config=None, **arguments):
        self.draw = draw
        self.mode = mode
        self.batch_size = batch_size
        self.parts = parts
        self.queue = Queue()
        self.groups = {}
        self.steps = {}
        self.running = {}
        self.global_steps = 1
        self.trained = []
        self.totals = {}
        if config is not None:
            self.config = config
        threshold = arguments.pop("threshold", 8)
        strategy = arguments.pop("strategy", "drop")
        with self.patched():
            self.buffer = tamis.verl.ReplayBuffer(
                trainer_mode=mode,
                trainer_config={} if mode == "sync" else {"num_warmup_batches": ahead, "parameter_sync_step": parts},
                max_off_policy_threshold=threshold,
                max_off_policy_strategy=strategy,
                sampler_kwargs={"metric": "acc", **arguments},
                refill_fn=self.add_prompts,
            )
        if mode != "sync" and int(ahead * batch_size):
            self.add_prompts(int(ahead * batch_size))

    def patched(self):
        """The queue and its clock in place of TransferQueue and time."""
        stack = contextlib.ExitStack()
        for patched in (module, sys.modules["verl.trainer.ppo.v1.replay_buffer"])[: 2 if HAS_VERL else 1]:
            stack.enter_context(mock.patch.multiple(patched, tq=self.queue, time=self.queue))
        return stack

    def add_prompts(self, number):
        if number < 1:
            raise ValueError(f"{number} prompts")
        for _ in range(number):
            uid = f"prompt{len(self.groups)}"
            group = self.groups[uid] = self.draw(len(self.groups))
            self.steps[uid] = self.global_steps
            self.running[uid] = self.queue.now + group.seconds
            self.queue.put(uid, {"is_prompt": True, "status": "pending", "global_steps": self.global_steps})

    def pass_time(self):
        """Puts into the queue what has ended by now."""
        for uid, end in list(self.running.items()):
            group = self.groups[uid]
            if end > self.queue.now:
                self.queue.put(uid, {"status": "running"})
                continue
            del self.running[uid]
            for member, value in enumerate(group.values):
                if value == "no":
                    continue
                for output in reversed(range(group.num_outputs)):
                    last = output == group.num_outputs - 1
                    info = {} if value is None else {"acc": value if last else 0.25}
                    score = value if isinstance(value, float) else 0.0
                    fields = {"extra_fields": {"reward_extra_info": info}, "rm_scores": Scores([0.0, score])}
                    self.queue.put(f"{uid}_{member}_{output}", {"seq_len": 3}, fields)
            self.queue.put(uid, {"status": group.status})

    def sample(self, batch_size=None):
        """A batch of the step; the uids of its groups, the batch itself and the counts."""
        size = batch_size or self.batch_size // self.parts
        with self.playing():
            batch, report = self.buffer.sample(global_steps=self.global_steps, partition_id="train", batch_size=size)
        uids = list(dict.fromkeys(key.rsplit("_", 2)[0] for key in batch.keys))
        self.trained += uids
        self.add_up(report)
        return uids, batch, report

    def wait(self, target):
        """The uids of so many kept groups or more, and the counts."""
        with self.playing():
            uids, report = self.buffer.wait_for_sampleable(self.global_steps, "train", target)
        self.add_up(report)
        return uids, report

    @contextlib.contextmanager
    def playing(self):
        """Groups end while the buffer sleeps."""
        sleep = self.queue.sleep

        def slept(seconds):
            sleep(seconds)
            self.pass_time()

        with self.patched(), mock.patch.object(self.queue, "sleep", slept):
            self.pass_time()
            yield

    def add_up(self, report):
        for name, value in report.items():
            if isinstance(value, int):
                self.totals[name] = self.totals.get(name, 0) + value

    def step(self):
        """A step of training: its batches as lists of uids."""
        self.add_prompts(self.batch_size)
        batches = []
        keys = []
        for _ in range(self.parts):
            uids, batch, _ = self.sample()
            batches.append(uids)
            keys += batch.keys
        with self.patched():
            self.queue.kv_clear("train", keys)
        self.global_steps += 1
        return batches

    @property
    def waiting(self):
        """Groups in the queue."""
        return [key for key, tag in self.queue.partitions.get("train", {}).items() if tag.get("is_prompt")]


COUNTS = {
    "drawn": "groups/drawn_total",
    "trained": "groups/trained_total",
    "dropped": "training/filter_groups/evicted_samples",
    "failed": "training/rollout_failure/evicted_samples",
    "stale": "training/off_policy/evicted_samples",
    "surplus": "training/filter_groups/discarded_surplus_samples",
    "change": "groups/waiting_change_total",
}


class Case(unittest.TestCase):
    def assert_adds_up(self, trainer):
        """Every drawn group is in one place, by the counts and by the queue."""
        total = {place: trainer.totals.get(name, 0) for place, name in COUNTS.items()}
        self.assertEqual(total["drawn"], len(trainer.groups))
        self.assertEqual(total["trained"], len(trainer.trained))
        self.assertEqual(total["change"], len(trainer.waiting))
        places = ("trained", "dropped", "failed", "stale", "surplus", "change")
        self.assertEqual(total["drawn"], sum(total[place] for place in places))
        gone = set(trainer.groups) - set(trainer.trained) - set(trainer.waiting)
        kinds = {"failed": 0, "dropped": 0, "kept": 0}
        for uid in gone:
            group = trainer.groups[uid]
            kinds["failed" if group.status == "failure" else "kept" if group.has_signal else "dropped"] += 1
        self.assertEqual(total["failed"], kinds["failed"])
        self.assertEqual(total["dropped"], kinds["dropped"])
        self.assertEqual(total["stale"] + total["surplus"], kinds["kept"])


def mixed(rate, rng, n=4, most_seconds=20.0, failing=0.05):
    """Draws groups; about this share of them has signal."""

    def draw(_):
        seconds = rng.uniform(0.0, most_seconds)
        if rng.random() < failing:
            return Group((1.0,) * rng.randrange(n), seconds, "failure")
        if rng.random() < rate:
            values = [float(rng.random() < 0.5) for _ in range(n)]
            values[:2] = [0.0, 1.0]
        else:
            values = [rng.choice([0.0, 1.0, 0.1])] * n
        for place in range(2, n):
            if rng.random() < 0.05:
                values[place] = rng.choice([None, float("nan"), "no"])
        rng.shuffle(values)
        return Group(tuple(values), seconds, num_outputs=rng.choice([1, 1, 1, 2]))

    return draw
