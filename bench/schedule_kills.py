#!/usr/bin/env python3
"""Kills and stops runs of every schedule at random instants: each has to equal the undisturbed run.

    python3 bench/schedule_kills.py                          10 runs of each schedule in each world
    python3 bench/schedule_kills.py --runs 60 --only native screen_first
    python3 bench/schedule_kills.py --seed 7                 the same instants and signals again

A run is ended a few times by SIGKILL, by SIGTERM (after which it saves what it has) or by a second SIGTERM
250 ms later, and resumed. Its world is the native engine with answers (`native`) or games (`games`), and the
undisturbed run has to have the same metrics and last weights. With `servers` there are two `tamis serve`, and
one of them is killed and restarted at random times. Servers never answer the same twice, so such a run is
repeated from its own journal and order: it must request nothing, and end the same.

It needs the program (`cargo build --release -p tamis-cli`).
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from kills import ROOT, check_accounts, differences, rows, weights

SCHEDULES = {
    f"{mode} {surplus}{' screen_first' if screened else ''}": f"mode: {mode}, surplus: {surplus}"
    + (", max_lag: 2" if surplus == "carry" else "")
    + (", screen_first: 2" if screened else "")
    for mode in ("rounds", "deficit", "streaming")
    for surplus in ("discard", "carry")
    for screened in ((False, True) if mode == "streaming" else (False,))
}

MODEL = """
model:
  init: {architecture: qwen3, hidden_size: 32, intermediate_size: 64, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 256}
"""

ANSWERS = """
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
"""

WORLDS = {
    "native": ANSWERS
    + MODEL
    + "rollout: {n: 4, max_response_length: 60}\nreward: [{kind: format, pattern: '[^5]*5[^5]*'}]\n",
    "games": """
  task: environment
environment: {kind: frozen_lake, size: 3, is_slippery: true, style: plain, prompting: {max_turns: 5}, train_size: 64, val_size: 8}
sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}
rollout: {n: 4, max_response_length: 6}
reward: [{kind: environment}]
"""
    + MODEL,
    "servers": ANSWERS
    + """
model: {path: POLICY}
rollout: {n: 4, max_response_length: 4, backend: vllm, servers: [SERVERS], server_timeout: 5s, server_lost_timeout: 60s, server_startup_timeout: 60s}
reward: [{kind: format, pattern: '[0-2].*'}]
""",
}

CONFIG = """
run: {{name: run, seed: 7, threads: 1}}
data:
  max_prompt_length: 16
  train_batch_size: 8
  gen_batch_size: 16{world}
filter: {{kind: variance, metric: seq_reward}}
schedule: {{max_num_gen_batches: 50, {schedule}}}
train: {{ppo_mini_batch_size: 4, total_steps: {steps}, optimizer: {{learning_rate: 1e-3}}}}
validate: {{test_freq: 4, before_train: true}}
checkpoint: {{save_freq: 3}}
"""

WAYS = ("SIGKILL", "SIGTERM", "SIGTERM twice")


def end(process, way):
    """Ends it so; its state then."""
    process.send_signal(signal.SIGKILL if way == "SIGKILL" else signal.SIGTERM)
    if way == "SIGTERM twice":
        try:
            return process.wait(timeout=0.25)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
    return process.wait(timeout=600)


class Servers:
    """Two of them, as processes of their own."""

    def __init__(self, program, policy):
        self.program, self.policy, self.num_lost = program, policy, 0
        self.ports = [self.free_port(), self.free_port()]
        self.processes = [self.serve(port) for port in self.ports]
        self.next_loss = time.monotonic() + 1

    @staticmethod
    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def serve(self, port):
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        command = [self.program, "serve", str(self.policy), "--port", str(port), "--threads", "1"]
        return subprocess.Popen(command, **quiet)

    def lose_one(self, dice):
        """Kills one and starts it again, at random times."""
        if time.monotonic() < self.next_loss:
            return
        self.next_loss = time.monotonic() + dice.uniform(0.3, 2)
        place = dice.randrange(2)
        self.processes[place].kill()
        self.processes[place].wait()
        self.processes[place] = self.serve(self.ports[place])
        self.num_lost += 1

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


def train(program, folder, *arguments):
    with open(folder / "log", "a") as log:
        return subprocess.Popen([program, "train", *arguments], cwd=folder, stdout=log, stderr=log)


def go_on(program, folder):
    """The run in a folder, from its beginning or its last checkpoint."""
    run = folder / "runs/run"
    if (run / "config.yaml").exists():
        return train(program, folder, "--resume", "runs/run")
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return train(program, folder, "config.yaml")


def run_through_signals(program, folder, dice, most, seconds, servers):
    """A run that is ended so often; the ways in which it was."""
    had = []
    while True:
        process = go_on(program, folder)
        until = time.monotonic() + dice.uniform(0.1, seconds)
        while process.poll() is None and (len(had) == most or time.monotonic() < until):
            if servers:
                servers.lose_one(dice)
            time.sleep(0.002)
        if process.poll() is None:
            had.append(dice.choice(WAYS))
            end(process, had[-1])
        if process.returncode == 0:
            return had
        if process.returncode not in (130, -signal.SIGKILL, -signal.SIGTERM):
            sys.exit(f"{folder} ended with exit code {process.returncode}:\n{(folder / 'log').read_text()[-4000:]}")


def replay(program, folder):
    """The same run from its own journal and order: how it differs."""
    run, again = folder / "runs/run", folder / "again"
    (again / "runs/run").mkdir(parents=True)
    for name in ("config.yaml", "started", "samples.bin", "order.bin"):
        if (run / name).exists():
            shutil.copy(run / name, again / "runs/run" / name)
    time.sleep(1)
    if train(program, again, "--resume", "runs/run").wait(timeout=600) != 0:
        return [(again / "log").read_text()[-4000:]]
    size = [(one / "samples.bin").stat().st_size for one in (run, again / "runs/run")]
    wrong = differences(rows(run), rows(again / "runs/run"))
    return wrong + ([f"samples.bin grew by {size[1] - size[0]} bytes"] if size[0] != size[1] else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="of each schedule in each world")
    parser.add_argument("--signals", type=int, default=3, help="to a run, at most")
    parser.add_argument("--only", nargs="*", default=[], help="worlds and schedules with all of these words")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    arguments = parser.parse_args()
    program = str(arguments.program.resolve())
    if not os.path.exists(program):
        sys.exit(f"there is no {program}: cargo build --release -p tamis-cli")
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    top = pathlib.Path(tempfile.mkdtemp(prefix="tamis-schedule-kills-"))
    text = CONFIG.format(world=ANSWERS + MODEL, schedule="mode: rounds", steps=1).replace("name: run", "name: policy")
    text += "reward: [{kind: number}]\nrollout: {n: 4, max_response_length: 4}\n"
    (top / "policy.yaml").write_text(text + "sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}\n")
    if train(program, top, "policy.yaml").wait() != 0:
        sys.exit((top / "log").read_text())
    policy, num_wrong, num_runs = top / "runs/policy/checkpoints/step_1", 0, 0
    for world, schedule in ((world, schedule) for world in WORLDS for schedule in SCHEDULES):
        name = f"{world} {schedule}"
        if not all(word in name.split() for word in arguments.only):
            continue
        config = CONFIG.format(world=WORLDS[world], schedule=SCHEDULES[schedule], steps=arguments.steps)
        place, seconds, whole = top / name.replace(" ", "_"), 4.0, None
        place.mkdir()
        if world != "servers":
            (place / "whole").mkdir()
            (place / "whole/config.yaml").write_text(config)
            began = time.monotonic()
            if go_on(program, place / "whole").wait() != 0:
                sys.exit((place / "whole/log").read_text())
            seconds = time.monotonic() - began
            whole = place / "whole/runs/run"
            check_accounts(rows(whole))
        ways, bad = {}, 0
        for number in range(arguments.runs):
            dice, folder = random.Random(f"{seed} {name} {number}"), place / str(number)
            folder.mkdir()
            servers = Servers(program, policy) if world == "servers" else None
            urls = ", ".join(f"http://127.0.0.1:{port}" for port in servers.ports) if servers else ""
            text = config.replace("POLICY", str(policy)).replace("SERVERS", urls)
            (folder / "config.yaml").write_text(text)
            try:
                had = run_through_signals(program, folder, dice, arguments.signals, seconds, servers)
                check_accounts(rows(folder / "runs/run"))
                if servers:
                    wrong = replay(program, folder)
                else:
                    wrong = differences(rows(folder / "runs/run"), rows(whole))
                    if weights(folder / "runs/run") != weights(whole):
                        wrong.append("the last weights differ")
            finally:
                if servers:
                    servers.close()
            for way in had:
                ways[way] = ways.get(way, 0) + 1
            if wrong:
                bad += 1
                print(f"  {folder}: {', '.join(had)}: {'; '.join(wrong)}", flush=True)
            else:
                shutil.rmtree(folder)
        num_wrong, num_runs = num_wrong + bad, num_runs + arguments.runs
        print(f"{name}: {bad} of {arguments.runs} differ; {json.dumps(ways)}", flush=True)
    print(f"{num_wrong} of {num_runs} runs differ" + (f"; kept in {top}" if num_wrong else ""))
    if not num_wrong:
        shutil.rmtree(top)
    sys.exit(bool(num_wrong))


if __name__ == "__main__":
    main()
