#!/usr/bin/env python3
"""Kills and stops the processes of a run at random instants, and compares it with an undisturbed run.

    python3 bench/kills.py                      50 kills, some to a run, with a PyTorch learner and two servers
    python3 bench/kills.py --launcher local --ranks 2
    python3 bench/kills.py --seed 7 --kills 3   the same instants and victims again

A victim is the learner (or one of its ranks, or rank 0), a server, the controller (`tamis train`, which is then
resumed) or the launcher (`python -m tamis.cluster`); it is killed (SIGKILL) or, if that also loses it, stopped
(SIGSTOP). At the end of every run its metrics, its accounting and its last weights must be those of the undisturbed
run: the same batches, each trained on once. It prints what every loss cost.

It needs the program (`cargo build --release -p tamis-cli`) and the learner's environment (`scripts/install-torch`).
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

CONFIG = """
run: {seed: 3, threads: 1}
model: {path: policy}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 8
  gen_batch_size: 16
rollout: {n: 4, max_response_length: 4}
reward: [{kind: number}]
filter: {kind: variance}
schedule: {max_num_gen_batches: 50}
train:
  ppo_mini_batch_size: 4
  optimizer: {learning_rate: 1e-3}
validate: {test_freq: 4, before_train: true}
checkpoint: {save_freq: 3}
"""

# A policy that is sometimes wrong.
POLICY = """
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}
"""

SOURCES = ("generated", "carried_in", "in_flight_in")
ENDS = ("trained", "left_out", "dropped", "surplus", "stale", "failed", "aborted", "carried_out", "in_flight_out")


class Processes:
    """What a run has started: the processes under it, by what they are."""

    def __init__(self, controller):
        self.controller = controller

    def under(self):
        """Numbers of all processes that descend from the controller."""
        children = {}
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                words = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if words[0] != "Z":
                children.setdefault(int(words[1]), []).append(int(status.parent.name))
        found, open_ = [], [self.controller]
        while open_:
            for child in children.get(open_.pop(), []):
                found.append(child)
                open_.append(child)
        return found

    def victims(self):
        """(what it is, its number), with the controller."""
        found = [("controller", self.controller)]
        for pid in self.under():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"tamis.cluster" in words:
                found.append(("launcher", pid))
            elif b"tamis.learner" in words:
                rank = next((int(word[5:]) for word in environment if word.startswith(b"RANK=")), None)
                found.append(("learner" if rank is None else "rank 0" if rank == 0 else "rank", pid))
            elif b"serve" in words:
                found.append(("server", pid))
        return found


# A variable of all that a bench starts, by which what is left is found: agents and guards run in no folder of a
# run.
MARK = "TAMIS_KILLS"


def left_over(folder):
    """Processes that still run of those that were started for a folder."""
    found, mark = [], f"{MARK}={folder}".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_marked = mark in (process / "environ").read_bytes().split(b"\0")
            is_there = pathlib.Path(os.readlink(process / "cwd")) == folder
        except OSError:
            continue
        if is_marked or is_there:
            found.append(int(process.name))
    return found


def wait_for_none(folder, seconds):
    """Those that are left after so long."""
    until = time.monotonic() + seconds
    while (found := left_over(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def rows(run):
    """Its metrics, without what the clock and faults make of them."""

    def is_of_the_run(name):
        return not name.startswith(("timing", "perf/", "rollout/server_")) and "time" not in name

    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if is_of_the_run(name)} for line in lines]


def weights(run):
    """Checksum of its last weights and moments."""
    last = max((run / "checkpoints").glob("step_*"), key=lambda folder: int(folder.name[5:]))
    files = [last / name for name in ("model.safetensors", "optimizer.safetensors")]
    return last.name, [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def check_accounts(rows):
    """Every group and trajectory of every step is in one counted place (of tokens the program itself checks it)."""
    for row in rows:
        for unit in ("groups", "trajectories"):
            came = sum(row.get(f"{unit}/{name}", 0) for name in SOURCES)
            went = sum(row.get(f"{unit}/{name}", 0) for name in ENDS)
            assert came == went, f"step {row.get('step')}: {came} {unit} came, {went} ended"


def differences(one, other):
    """The first figures in which two runs differ."""
    if len(one) != len(other):
        return [f"{len(one)} rows, and {len(other)}"]
    found = []
    for first, second in zip(one, other, strict=True):
        names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        found += [f"step {first.get('step')}: {name}: {first.get(name)} and {second.get(name)}" for name in names]
    return found[:5]


class Bench:
    def __init__(self, folder, arguments):
        self.folder, self.program = folder, arguments.program
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "1", MARK: str(folder)}
        (folder / "config.yaml").write_text(CONFIG)
        serve = [str(self.program), "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--threads", "1"]
        self.arguments = [
            f"train.total_steps={arguments.steps}",
            "learner.backend=torch", "learner.device=cpu", f"learner.python={arguments.python}",
            # Victims are lost often, and maybe without a finished step in between.
            "learner.max_restarts=100", "learner.lost_timeout=6s", "learner.timeout=60s", "learner.startup_timeout=30s",
            "rollout.backend=vllm", "rollout.server_timeout=5s",
            f"rollout.launch={{replicas: 2, command: {json.dumps(serve)}, startup_timeout: 30s, lost_timeout: 6s}}",
        ]  # fmt: skip
        if arguments.launcher != "none":
            self.arguments.append(f"cluster.launcher={arguments.launcher}")
        if arguments.ranks > 1:
            self.arguments += [f"learner.gpus_per_node={arguments.ranks}", "learner.heartbeat=2s"]

    def start(self, *arguments, log):
        return subprocess.Popen(
            [str(self.program), "train", *arguments], cwd=self.folder, env=self.environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip

    def train(self, *arguments):
        with open(self.folder / "output", "w+") as log:
            run = self.start(*arguments, log=log)
            if run.wait(timeout=900) != 0:
                log.seek(0)
                sys.exit(log.read()[-4000:])

    def prepare(self):
        """A policy to begin with, and the undisturbed run; its rows, weights and seconds."""
        (self.folder / "policy.yaml").write_text(CONFIG.replace("model: {path: policy}", POLICY.strip()))
        self.train("policy.yaml", "run.name=policy", "train.total_steps=1")
        shutil.copytree(self.folder / "runs/policy/checkpoints/step_1", self.folder / "policy")
        began = time.monotonic()
        self.train("config.yaml", "run.name=whole", *self.arguments)
        seconds = time.monotonic() - began
        run = self.folder / "runs/whole"
        return rows(run), weights(run), seconds

    def run_with_kills(self, name, dice, num_kills, most_seconds):
        """One run with so many victims; returns those it had, as (what, how, seconds since the run began)."""
        run, had = self.folder / "runs" / name, []
        log = open(self.folder / f"{name}.log", "w")
        began = time.monotonic()
        process = self.start("config.yaml", f"run.name={name}", *self.arguments, log=log)
        stopped = []
        while len(had) < num_kills:
            until = time.monotonic() + dice.uniform(0.5, most_seconds)
            while time.monotonic() < until and process.poll() is None:
                time.sleep(0.05)
            if process.poll() is not None:
                break
            if not (run / "config.yaml").exists():
                continue
            of_a_kind = {}
            for what, pid in Processes(process.pid).victims():
                if pid not in stopped:
                    of_a_kind.setdefault(what, []).append(pid)
            if not of_a_kind:
                continue
            what = dice.choice(sorted(of_a_kind))
            pid = dice.choice(sorted(of_a_kind[what]))
            how = "stopped" if what not in ("controller", "launcher") and dice.random() < 0.3 else "killed"
            try:
                os.kill(pid, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            except ProcessLookupError:
                continue
            had.append((what, how, time.monotonic() - began))
            print(f"  {name} {time.monotonic() - began:6.1f} s: {what} {pid} is {how}", flush=True)
            if how == "stopped":
                stopped.append(pid)
            if what == "controller":
                process.wait()
                self.wait_for_end(name)
                arguments = ["--resume", f"runs/{name}"]
                if not (run / "config.yaml").exists():
                    arguments = ["config.yaml", f"run.name={name}", *self.arguments]
                process = self.start(*arguments, log=log)
        code = process.wait(timeout=900)
        log.close()
        if code != 0:
            text = (self.folder / f"{name}.log").read_text()
            sys.exit(f"{name} ended with exit code {code}:\n{text[-6000:]}")
        return had, time.monotonic() - began

    def wait_for_end(self, name):
        """Until nothing of a controller that was killed is left."""
        if found := wait_for_none(self.folder, 30):
            sys.exit(f"{name}: the processes {found} outlive their controller by 30 s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kills-a-run", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--launcher", choices=["none", "local"], default="none")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--python", default=str(ROOT / ".venv-torch/bin/python"))
    arguments = parser.parse_args()
    if not arguments.program.exists():
        sys.exit(f"there is no {arguments.program}: cargo build --release -p tamis-cli")
    arguments.program = arguments.program.resolve()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="tamis-kills-") as folder:
        bench = Bench(pathlib.Path(folder).resolve(), arguments)
        whole, last_weights, seconds = bench.prepare()
        check_accounts(whole)
        print(f"seed {seed}; untouched, the run takes {seconds:.1f} s for {arguments.steps} steps", flush=True)
        total, cost, number, all_had = 0, [], 0, {}
        while total < arguments.kills:
            name, dice = f"run_{number}", random.Random(f"{seed} {number}")
            most = min(arguments.kills_a_run, arguments.kills - total)
            had, took = bench.run_with_kills(name, dice, most, seconds / 2)
            run = bench.folder / "runs" / name
            found = rows(run)
            check_accounts(found)
            wrong = differences(found, whole)
            if weights(run) != last_weights:
                wrong.append("the last weights differ")
            said = re.findall(r"where the learner was lost: ([\d.]+) s", (bench.folder / f"{name}.log").read_text())
            cost += [float(one) for one in said]
            if wrong:
                kept = pathlib.Path(tempfile.mkdtemp(prefix="tamis-kills-kept-"))
                shutil.copytree(bench.folder, kept / "runs", dirs_exist_ok=True, symlinks=True)
                sys.exit(f"{name} (seed {seed}) differs from the undisturbed run; kept in {kept}\n" + "\n".join(wrong))
            total, number = total + len(had), number + 1
            for what, how, _ in had:
                all_had[f"{what} {how}"] = all_had.get(f"{what} {how}", 0) + 1
            lost = took - seconds
            print(f"{name}: the same batches, accounts and weights; {len(had)} losses cost {lost:.1f} s", flush=True)
            # Guards of what was killed end a moment after it.
            if bench_left := wait_for_none(bench.folder, 10):
                sys.exit(f"{name} left processes: {bench_left}")
            shutil.rmtree(run)
    print(f"{total} losses in {number} runs: {', '.join(f'{n} x {what}' for what, n in sorted(all_had.items()))}")
    if cost:
        cost.sort()
        print(f"a lost learner cost {cost[len(cost) // 2]:.1f} s (median of {len(cost)}; most {cost[-1]:.1f} s)")


if __name__ == "__main__":
    main()
