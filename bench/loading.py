#!/usr/bin/env python3
"""Host memory of each rank of the torch learner, and seconds, as a model is loaded, saved as a checkpoint, and loaded again.

    .venv-torch/bin/python bench/loading.py [--ranks 1 2 4] [--model FOLDER] [--python OTHER/python] [--critic]

Ranks are processes on this machine that compute on its CPU. Without `--model` it is a Llama of SmolLM2-135M's sizes with random
weights in bf16. `--python` takes the learner of another checkout. One JSON line for each number of ranks: `mib` is the most that the
rank with the most held in each call (the kernel's VmHWM, reset before each), `anonymous_mib` what it holds behind it, both
above what the process held before it had a model; the first number of `weights_mib` is all of the policy's in f32.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "python/tests"))

from test_server import Client

OPTIMIZER = {
    "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "decay_norms_and_biases": True, "max_grad_norm": 1.0,
}  # fmt: skip
SIZES = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
LIMIT = 600


def make_model(folder):
    """A Llama with random weights."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def status(pid):
    """Figures of a process in MiB, by the kernel's names."""
    lines = (line.split() for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words[0] in ("VmHWM:", "RssAnon:", "VmRSS:")}


class Gang:
    """Ranks of one learner."""

    def __init__(self, number, python, folder):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = str(found.getsockname()[1])
        self.address = f"{folder}/socket"
        self.log = open(f"{folder}/log", "w")
        self.processes = []
        for rank in range(number):
            environment = {**os.environ, "PYTHONPATH": python, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            # Otherwise glibc keeps what passes on a CPU have freed, and it is that which is measured.
            environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 18)
            if number > 1:
                environment |= {
                    "RANK": str(rank), "WORLD_SIZE": str(number), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                }  # fmt: skip
            command = [sys.executable, "-m", "tamis.learner", "--listen", f"unix:{self.address}", "--heartbeat", "60"]
            self.processes.append(subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log))
        until = time.monotonic() + LIMIT
        while not os.path.exists(self.address):
            if time.monotonic() > until or any(one.poll() is not None for one in self.processes):
                sys.exit(pathlib.Path(f"{folder}/log").read_text())
            time.sleep(0.05)
        self.client = Client(f"unix:{self.address}", timeout=LIMIT)
        self.idle = [status(one.pid) for one in self.processes]

    def measure(self, name, settings):
        """One call: the most that any rank held in it and holds behind it, and seconds."""
        for one in self.processes:
            pathlib.Path(f"/proc/{one.pid}/clear_refs").write_text("5")
        began = time.perf_counter()
        code, answer, _ = self.client.post(name, settings, {})
        if code != 200:
            sys.exit(f"{name}: {answer}")
        seconds = time.perf_counter() - began
        held = [(status(one.pid), idle) for one, idle in zip(self.processes, self.idle, strict=True)]
        peak = max(now["VmHWM"] - idle["VmRSS"] for now, idle in held)
        anonymous = max(now["RssAnon"] - idle["RssAnon"] for now, idle in held)
        return {"mib": round(peak), "anonymous_mib": round(anonymous), "seconds": round(seconds, 1)}, answer

    def end(self):
        """Kills all."""
        for one in self.processes:
            one.kill()
            one.wait()


def main():
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--model", type=pathlib.Path, help="a folder in Hugging Face layout")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "python", help="folder `python` of a checkout")
    parser.add_argument("--critic", action="store_true", help="with a critic that begins with the policy's layers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = str(arguments.model or make_model(f"{folder}/model"))
        for number in arguments.ranks:
            own = pathlib.Path(folder, f"ranks_{number}")
            own.mkdir()
            gang = Gang(number, str(arguments.python), own)
            try:
                options = {"device": "cpu", "threads": 1}
                settings = {"policy": model, "temperature": 1.0, "optimizer": OPTIMIZER, "options": options}
                if arguments.critic:
                    settings["critic"] = {"folder": None, "optimizer": OPTIMIZER}
                found, answer = gang.measure("open", settings)
                line = {"ranks": number, "weights_mib": round(answer["policy"]["num_parameters"] * 4 / 2**20), "open": found}
                if arguments.critic:
                    line["critic"], _ = gang.measure("copy", {"to": "critic"})
                line["reference"], _ = gang.measure("copy", {"to": "reference"})
                saved = own / "saved"
                saved.mkdir()
                asked = {"folder": str(saved), "content": "checkpoint"}
                line["save"], _ = gang.measure("save", {**asked, "dtype": "f32", "untied": False})
                line["load"], _ = gang.measure("load", asked)
            finally:
                gang.end()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
