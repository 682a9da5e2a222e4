#!/usr/bin/env python3
"""Counts the groups that verl's own replay buffer generates for each trained one, over a simulated queue.

    pip download verl==0.9.1 --no-deps -d FOLDER && python3 bench/peers/verl_buffer.py FOLDER/verl-0.9.1-py3-none-any.whl

The class is verl's, unchanged: `verl/trainer/ppo/v1/replay_buffer.py`, read from the wheel. Its queue and its clock are
made up, and the loop around it does what `PPOTrainer` does: a batch of prompts at the start of a step, in the asynchronous
modes another one before the first step. A completion is a lognormal number of tokens at 20 ms each, a group ends with the
last of its members, and training takes no time: the world of `tamis simulate` with

    simulate.servers.load=0 simulate.servers.slots=1000000 rollout.n=8 data.train_batch_size=16
    simulate.length.median=100 simulate.length.sigma=0.6

and tests/simulate/verl_v1.rs of tamis-lab has its figures beside the policies `verl_v1` and `verl_v1_async`. Needs numpy.
"""

import argparse
import importlib.util
import itertools
import math
import pathlib
import random
import sys
import types
import zipfile

MODULE = "verl/trainer/ppo/v1/replay_buffer.py"
MEMBERS = 8
BATCH = 16
SECONDS_PER_TOKEN = 0.02
WARM_UP_BATCHES = 1
THRESHOLD = 8


class Queue:
    """The calls of TransferQueue that the buffer makes, and the clock that it sleeps by."""

    def __init__(self):
        self.now = 0.0
        self.sleeps = 0
        self.prompts = {}
        self.scores = {}

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps += 1

    def time(self):
        return self.now

    def put(self, uid, step, seconds, scores):
        self.prompts[uid] = (step, self.now + seconds)
        self.scores.update({f"{uid}_{member}_0": score for member, score in enumerate(scores)})

    def kv_list(self):
        listed = {}
        for uid, (step, end) in self.prompts.items():
            status = "finished" if end <= self.now else "running"
            listed[uid] = {"is_prompt": True, "status": status, "global_steps": step}
            if status == "finished":
                listed.update({f"{uid}_{member}_0": {} for member in range(MEMBERS)})
        return {"train": listed}

    def kv_batch_get(self, keys, partition_id, select_fields):
        info = lambda key: {"reward_extra_info": {"acc": self.scores[key]}}
        return {"extra_fields": [info(key) for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.prompts.pop(key, None)
            self.scores.pop(key, None)


def load(wheel, queue):
    """verl's module of the wheel, or of the folder that it is installed in, with this queue and clock; what else it
    imports is not used here."""
    stand_ins = {
        "transfer_queue": types.SimpleNamespace(KVBatchMeta=types.SimpleNamespace),
        "omegaconf": types.SimpleNamespace(DictConfig=dict),
        "verl.utils.skip": types.SimpleNamespace(SkipManager=types.SimpleNamespace(annotate_tq=lambda **_: lambda call: call)),
    }
    for name, module in stand_ins.items():
        sys.modules[name] = module
    spec = importlib.util.spec_from_loader("replay_buffer", loader=None)
    module = importlib.util.module_from_spec(spec)
    root = pathlib.Path(wheel) if pathlib.Path(wheel).is_dir() else zipfile.Path(wheel)
    exec(compile((root / MODULE).read_text(), MODULE, "exec"), module.__dict__)
    module.tq = module.time = queue
    return module


def pass_rate(keep):
    """The pass rate at which this share of groups is mixed."""
    low, high = 0.0, 0.5
    for _ in range(60):
        middle = (low + high) / 2
        mixed = 1 - middle**MEMBERS - (1 - middle) ** MEMBERS
        low, high = (middle, high) if mixed < keep else (low, middle)
    return low


def builtin(module, mode, common):
    if mode == "sync":
        return module.ReplayBuffer(**common, filter_groups_metric="acc", train_batch_size=BATCH, gen_batch_size=1)
    return module.ReplayBufferAsync(**common, filter_groups_metric="acc")


def run(wheel, mode, keep, given, make=builtin):
    queue, draw, uids = Queue(), random.Random(given.seed), itertools.count()
    module = load(wheel, queue)
    rate, step, generated, drawn = pass_rate(keep), 1, 0, {}

    def add(number):
        nonlocal generated
        for _ in range(number):
            tokens = max(given.median * math.exp(given.sigma * draw.gauss(0, 1)) for _ in range(MEMBERS))
            scores = [float(draw.random() < rate) for _ in range(MEMBERS)]
            uid = f"p{next(uids)}"
            drawn[uid] = step
            queue.put(uid, step, SECONDS_PER_TOKEN * tokens, scores)
        generated += number

    common = dict(
        trainer_mode=mode, trainer_config={}, max_off_policy_threshold=THRESHOLD, max_off_policy_strategy="drop",
        sampler_kwargs={}, refill_fn=add,
    )
    buffer = make(module, mode, common)
    if mode != "sync":
        add(WARM_UP_BATCHES * BATCH)
    surplus = stale = lag = 0
    for step in range(1, given.steps + 1):
        add(BATCH)
        batch, metrics = buffer.sample(step, "train", BATCH)
        lag += sum(step - drawn[uid] for uid in {key.split("_")[0] for key in batch.keys})
        surplus += metrics.get("training/filter_groups/discarded_surplus_samples", 0)
        stale += metrics.get("training/off_policy/evicted_samples", 0)
    trained = given.steps * BATCH
    figures = generated / trained, queue.sleeps / given.steps, surplus / trained, stale / trained
    # What has finished and is still there was kept: it waits for a later batch.
    waiting = sum(end <= queue.now for _, end in queue.prompts.values())
    return *figures, lag / trained, waiting / trained, (len(queue.prompts) - waiting) / trained


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--median", type=float, default=100, help="tokens of a completion")
    parser.add_argument("--sigma", type=float, default=0.6, help="deviation of their logarithm")
    given = parser.parse_args()
    print(f"{'mode':<16} {'keep rate':>9} {'pass rate':>9} {'generated':>9} {'polls':>6} {'surplus':>8} {'stale':>6}")
    for mode in ["sync", "colocate_async"]:
        for keep in [0.2, 0.38, 0.7]:
            generated, polls, surplus, stale, *_ = run(given.wheel, mode, keep, given)
            print(f"{mode:<16} {keep:>9} {pass_rate(keep):>9.5f} {generated:>9.3f} {polls:>6.2f} {surplus:>8.3f} {stale:>6.3f}", flush=True)


if __name__ == "__main__":
    main()
