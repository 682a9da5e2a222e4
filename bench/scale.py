#!/usr/bin/env python3
"""What the run itself costs at scale: its CPU time, memory and disk, with learner and servers that cost nothing.

    python3 bench/scale.py             64 ranks, 512 prompts x 16 x about 4,096 tokens a step, 2 steps
    python3 bench/scale.py --small     a hundredth of it, in seconds

The learner is simulated behind the real wire (tamis-learner/1: it computes nothing, and checks that waves are
what it may be sent), and so are vLLM servers (their answers are rendered once, with other lengths and a
log-probability for every token). The run is the real program. It shares the machine with what is simulated,
so the wall-clock time means little. What counts is its own CPU time, as a share of the 620 s in which eight
GPUs would learn from the tokens of such a step (64: an eighth of that), and the most memory that it held. The
last line says how much of the time lies between the passes of a step, while the learner waits for it; most of
the rest is spent while servers generate.

It needs the program (`cargo build --release -p tamis-cli`) and the standard library of Python.
"""

import argparse
import asyncio
import http.server
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import threading
import zlib
from array import array

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Seconds in which eight GPUs of 400 TFLOP/s learn from 33.5 million tokens with 7.6 billion weights.
LEARNING = 620.0
TOKENS = 33.5e6
# Calls after which a learner waits for the next of the same step.
PASSES = {"forward", "forward_hold", "backward", "grad_norm"}

CONFIG = """
run: {{name: scale, seed: 3, threads: 2}}
model:
  init: {{architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 16384}}
data:
  task: arithmetic
  arithmetic: {{levels: [{{digits: 4, operators: ['+', '-'], terms: 3}}], train_size: {train_size}, val_size: 0}}
  max_prompt_length: 64
  train_batch_size: {prompts}
  check_gold: off
preset: dapo
rollout: {{backend: vllm, n: {group}, max_response_length: {longest}, servers: {servers}, max_in_flight: 512}}
reward: [{{kind: length, max_length: {longest}, scale: {longest}}}]
filter: {{kind: variance, metric: seq_reward}}
learner: {{backend: torch, url: "{learner}"}}
publish: {{verify: "off"}}
train:
  ppo_mini_batch_size: {mini_batch}
  micro_batch_tokens: {micro_batch}
  total_steps: {steps}
  optimizer: {{learning_rate: 1e-6}}
validate: {{test_freq: 0, before_train: false}}
"""


# The learner


class Learner:
    """Answers the calls of the wire without computing anything."""

    def __init__(self, num_ranks, micro_batch):
        self.num_ranks, self.micro_batch = num_ranks, micro_batch
        self.num_steps = self.num_tokens = self.num_waves = 0
        self.held = 0
        self.folder = None
        # The call before, and the run's CPU time then; and what of it lay between passes, in seconds.
        self.pid, self.before, self.serial = None, (None, 0.0), 0.0

    def networks(self):
        sizes = {"num_parameters": 7_600_000_000, "num_trained": 7_600_000_000, "vocab_size": self.vocab_size, "max_positions": 16384}
        return {"policy": sizes, "critic": None, "num_steps": self.num_steps, "shares_prompts": True}

    def info(self):
        capabilities = {
            "critic": True, "lora": False, "publish": ["folder"], "generate": False, "dtypes": ["bf16"],
            "max_body_bytes": 1 << 30,
        }  # fmt: skip
        return {
            "protocol": "tamis-learner/1", "implementation": "simulated torch", "incarnation": "i", "seq": 0,
            "num_ranks": self.num_ranks, "device": "nothing", "capabilities": capabilities,
        }  # fmt: skip

    def watch(self, name):
        if self.pid is not None:
            stat = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            now = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            last, then = self.before
            self.serial += now - then if last in PASSES else 0.0
            self.before = (name, now)

    def call(self, name, settings, columns):
        match name:
            case "open":
                self.folder = pathlib.Path(settings["policy"])
                self.config = json.loads((self.folder / "config.json").read_text())
                self.vocab_size = self.config["vocab_size"]
                self.weights = (self.folder / "model.safetensors").read_bytes()
                return {"incarnation": "i", "dtype": "bf16", **self.networks()}, {}
            case "forward" | "forward_hold":
                tokens = self.check_wave(columns)
                if name == "forward_hold":
                    self.held, self.num_tokens, self.num_waves = tokens, self.num_tokens + tokens, self.num_waves + 1
                seconds = [1.0] * self.num_ranks
                return {"rank_seconds": seconds}, {"logprob": constants(-1.5, tokens), "entropy": constants(1.0, tokens)}
            case "backward":
                assert len(columns["logprob"][1]) == 4 * self.held
                return {}, {}
            case "optim_step":
                self.num_steps += 1
                return {"skipped": False, "num_steps": self.num_steps}, {"grad_norm": ("F64", struct.pack("<d", 1.0))}
            case "grad_norm":
                return {}, {"grad_norm": ("F64", struct.pack("<d", 1.0))}
            case "check":
                return {"not_finite": None}, {}
            case "save":
                return self.save(pathlib.Path(settings["folder"])), {}
            case "copy" | "load" | "restore":
                return self.networks(), {}
            case "keep" | "publish" | "reset_optimizer":
                return {}, {}
        raise ValueError(name)

    def check_wave(self, columns):
        """Every rank has at most a micro-batch, and what it may have beyond that is one sequence."""
        offsets = array("q", columns["completion_offset"][1])
        prompts = array("q", columns["prompt_offset"][1])
        ranks, prompt_of = (array("i", columns[name][1]) for name in ("rank", "prompt_of"))
        tokens, sequences, seen = [0] * self.num_ranks, [0] * self.num_ranks, set()
        for place, rank in enumerate(ranks):
            prompt = prompt_of[place]
            if (rank, prompt) not in seen:
                seen.add((rank, prompt))
                tokens[rank] += prompts[prompt + 1] - prompts[prompt]
            tokens[rank] += offsets[place + 1] - offsets[place]
            sequences[rank] += 1
        for rank, number in enumerate(tokens):
            assert number <= self.micro_batch or sequences[rank] == 1, f"rank {rank} has {number} tokens"
        return offsets[-1]

    def save(self, folder):
        files = []
        contents = {"config.json": json.dumps(self.config).encode(), "model.safetensors": self.weights, "optimizer.safetensors": self.weights}
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            files.append({"name": name, "bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"})
        return {"files": files, "overflow": None}


def constants(value, number):
    return "F32", struct.pack("<f", value) * number


def encode(settings, columns):
    header, begin = {"__metadata__": {"json": json.dumps(settings)}}, 0
    sizes = {"F32": 4, "F64": 8}
    for name, (dtype, data) in columns.items():
        header[name] = {"dtype": dtype, "shape": [len(data) // sizes[dtype]], "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data for _, data in columns.values())


def decode(content_type, body):
    if "safetensors" not in content_type:
        return json.loads(body or b"{}"), {}
    (length,) = struct.unpack_from("<Q", body)
    header, data = json.loads(body[8 : 8 + length]), memoryview(body)[8 + length :]
    settings = json.loads(header.pop("__metadata__")["json"])
    return settings, {name: (one["dtype"], data[slice(*one["data_offsets"])].tobytes()) for name, one in header.items()}


def serve_learner(num_ranks, micro_batch, tell):
    learner = Learner(num_ranks, micro_batch)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.answer(json.dumps(learner.info() if self.path.endswith("info") else {"phase": "idle", "seq": 0}).encode())

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            settings, columns = decode(self.headers.get("Content-Type", ""), body)
            name = self.path.rsplit("/", 1)[1]
            learner.watch(name)
            values, columns = learner.call(name, settings, columns)
            if columns:
                self.answer(encode(values, columns), "application/x-safetensors")
            else:
                self.answer(json.dumps(values).encode())

        def answer(self, body, content_type="application/json"):
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tell.send(f"http://127.0.0.1:{server.server_address[1]}")
    learner.pid = tell.recv()
    tell.recv()
    tell.send((learner.num_tokens, learner.num_waves, learner.serial))


# The servers


class Server:
    """A vLLM that has all its answers ready: a template for each of some lengths."""

    def __init__(self, mean, longest):
        dice = random.Random(1)
        self.label, self.longest = "default", longest
        self.bodies = [self.render(dice, mean + int(mean * 0.08) * step // 8) for step in range(-8, 9)]

    @staticmethod
    def render(dice, length):
        tokens = [3 + dice.randrange(10) for _ in range(length)]
        logprobs = [round(-3 * dice.random(), 6) for _ in range(length)]
        content = [{"token_id": t, "logprob": p, "rank": 1, "top_logprobs": []} for t, p in zip(tokens, logprobs, strict=True)]
        middle = json.dumps({"index": 0, "finish_reason": "stop", "token_ids": tokens, "logprobs": {"content": content}})
        return length, middle[:-1].encode()

    def answer(self, method, path, body):
        """Status and body."""
        name = path.split("?")[0]
        match name:
            case "/version":
                return 200, b'{"version": "0.33.0"}'
            case "/v1/models":
                return 200, b'{"data": [{"id": "simulated", "max_model_len": 16384}]}'
            case "/weight_info":
                return 200, json.dumps({"weight_version": self.label}).encode()
            case "/is_paused":
                return 200, b'{"is_paused": false}'
            case "/is_sleeping":
                return 200, b'{"is_sleeping": false}'
            case "/metrics":
                return 200, b'vllm:num_requests_running{e="0"} 0\nvllm:num_requests_waiting{e="0"} 0\n'
            case "/reset_prefix_cache":
                return 200, b'{"success": true}'
            case "/collective_rpc":
                return 200, b'{"results": [null]}'
            case "/update_weight_version":
                self.label = json.loads(body)["new_version"]
                return 200, json.dumps({"success": True, "new_version": self.label}).encode()
            case "/inference/v1/generate":
                return 200, self.generate(json.loads(body))
        return 200, b"{}"

    def generate(self, asked):
        parameters, name = asked["sampling_params"], asked.get("request_id", "none")
        prompt = asked["token_ids"]
        if parameters.get("max_tokens") == 1:
            token = (parameters.get("allowed_token_ids") or [3])[0]
            content = [{"token_id": token, "logprob": 0.0, "rank": 1, "top_logprobs": []}]
            choice = {"index": 0, "finish_reason": "length", "token_ids": [token], "logprobs": {"content": content}}
            choice["weight_versions"] = [{"version": self.label, "start": 0, "end": 1}]
            return json.dumps({"request_id": f"generate-tokens-{name}", "choices": [choice], "usage": {}}).encode()
        # Every fourth prompt has members of one length: a group without signal.
        kind = sum(prompt) if sum(prompt) % 4 == 0 else int(parameters.get("seed", 0))
        length, middle = self.bodies[kind % len(self.bodies)]
        spans = json.dumps([{"version": self.label, "start": 0, "end": length}]).encode()
        usage = b'{"prompt_tokens": %d, "completion_tokens": %d}' % (len(prompt), length)
        head = b'{"request_id": "generate-tokens-%s", "usage": %s, "choices": [' % (name.encode(), usage)
        return head + middle + b', "weight_versions": ' + spans + b"}]}"


def serve_vllm(mean, longest, tell):
    server = Server(mean, longest)

    async def converse(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                status, answer = server.answer(method, path, body)
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(answer)))
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run():
        listening = await asyncio.start_server(converse, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
        tell.send(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        await asyncio.get_running_loop().run_in_executor(None, tell.recv)

    asyncio.run(run())


def start(target, *arguments):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours, ours.recv()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a hundredth: 32 prompts x 8 x 1,000 tokens, 4 ranks")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--keep", type=pathlib.Path, help="leave the run's folder here")
    arguments = parser.parse_args()
    if not arguments.program.exists():
        sys.exit(f"there is no {arguments.program}: cargo build --release -p tamis-cli")
    prompts, group, mean, ranks = (32, 8, 1000, 4) if arguments.small else (512, 16, 4096, 64)
    longest, micro_batch = mean + mean // 4, 4 * mean
    _, learner, learner_url = start(serve_learner, ranks, micro_batch)
    servers = [start(serve_vllm, mean, longest) for _ in range(2)]
    with tempfile.TemporaryDirectory(prefix="tamis-scale-") as folder:
        config = CONFIG.format(
            prompts=prompts, group=group, longest=longest, mini_batch=prompts, micro_batch=micro_batch, steps=arguments.steps,
            servers=json.dumps([url for _, _, url in servers]), learner=learner_url, train_size=4 * prompts * arguments.steps,
        )  # fmt: skip
        pathlib.Path(folder, "config.yaml").write_text(config)
        log = pathlib.Path(folder, "output")
        with open(log, "w") as output:
            pid = spawn(arguments.program.resolve(), folder, output)
            learner.send(pid)
            _, status, usage = os.wait4(pid, 0)
        if status != 0:
            sys.exit(f"the run ended with status {status}:\n{log.read_text()[-4000:]}")
        run = pathlib.Path(folder, "runs/scale")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        learner.send(None)
        report(arguments, rows, usage, learner.recv(), run)
        if arguments.keep is not None:
            shutil.copytree(folder, arguments.keep)


def spawn(program, folder, output):
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.execv(program, [str(program), "train", "config.yaml"])
    return pid


def report(arguments, rows, usage, learned, run):
    tokens, waves, serial = learned
    steps = arguments.steps
    cpu, a_step = (usage.ru_utime + usage.ru_stime) / steps, tokens / steps
    per_step = LEARNING * a_step / TOKENS
    print(f"{a_step / 1e6:.2f} M tokens a step in {waves / steps:.0f} waves, {steps} steps")
    print(f"CPU time of the run: {cpu:.1f} s a step, {100 * cpu / per_step:.2f} % of the {per_step:.0f} s of learning")
    print(f"most memory: {usage.ru_maxrss / 1e6:.2f} GB")
    sizes = {name: sum(path.stat().st_size for path in [run / name] if path.exists()) for name in ("samples.bin", "order.bin")}
    sizes["rollouts"] = sum(path.stat().st_size for path in (run / "rollouts").glob("*"))
    print("on disk: " + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()))
    names = [name for name in rows[-1] if name.startswith("timing_s/")]
    for name in sorted(names, key=lambda name: -rows[-1][name])[:12]:
        print(f"  {name:<28} {rows[-1][name]:8.2f} s")
    trained = rows[-1]
    print(f"groups: {trained['groups/generated']:.0f} generated, {trained['groups/trained']:.0f} trained, {trained['groups/dropped']:.0f} dropped")
    # Rewards and advantages come before the first pass.
    between = serial / steps + mean(rows, "reward", "adv")
    outside = mean(rows, "step") - mean(rows, "gen", "old_log_prob", "reward", "adv", "update_actor")
    print(f"outside of all stages: {outside:.1f} s a step of wall-clock")
    shares = [f"{100 * between / time:.2f} % of {time:.0f} s on {gpus} GPUs" for gpus, time in ((8, per_step), (64, per_step / 8))]
    print(f"between passes: {between:.1f} s a step of CPU time, {', '.join(shares)}; all that the run takes is {800 * cpu / per_step:.1f} % there")


def mean(rows, *stages):
    """Seconds of stages, a step."""
    return sum(row.get(f"timing_s/{stage}", 0.0) for row in rows for stage in stages) / len(rows)


if __name__ == "__main__":
    main()
