"""A vLLM server that takes weights over a communicator, played over gloo, and the learner's side of that.

    python played_vllm.py --port PORT --folder FOLDER [--workers 2] [--upstream http://127.0.0.1:8001]

It answers the routes by which vLLM 0.33 takes weights (docs.vllm.ai, "Trainer Without vLLM over HTTP"), written from only
that page. What it receives is written to FOLDER/received_N as a folder of weights. With `--upstream`, a `tamis serve`,
it is a server that samples, too: everything else is asked of that one, which loads what was received.

`--fault` says what goes wrong: at `join` it never answers, at `init`, `start`, `update` and `finish` it answers 500, at `die` it
is gone after the first buffer, at `stop` it stops itself there (SIGSTOP), at `half` it answers 500 then, at `end` it never
receives the rest. What it has of an update that broke off at `half` spoils what is loaded next, as in vLLM 0.32, unless an
update is started and ended first. With `--once FILE`, which is written then, it goes wrong once. `--serve COMMAND`
starts the server behind it, which ends with it.
"""

import argparse
import base64
import contextlib
import datetime
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import torch
import torch.distributed as dist

# Seconds that gloo waits by itself.
GLOO_SECONDS = 40.0

_ABORTED = []


class Gloo:
    """Plays `tamis.learner.transfer.Nccl`; a unique id holds the address of a store."""

    def __init__(self, num_ranks, device):
        self._num_ranks = num_ranks
        timeout = datetime.timedelta(seconds=GLOO_SECONDS)
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, timeout, wait_for_workers=False)
        self.unique_id = f"127.0.0.1:{self._store.port}".encode().ljust(128, b"\0")
        self._group, self._lock, self._is_aborted = None, threading.Lock(), False

    @classmethod
    def is_available(cls):
        return True

    @classmethod
    def describe(cls):
        return "gloo"

    @classmethod
    def check_device(cls, device):
        """It sends from the host."""

    def join(self, wait):
        self._group = meet(self._store, 0, self._num_ranks, wait)

    def place(self, number):
        return contextlib.nullcontext()

    def broadcast(self, buffer, wait):
        with self._lock:
            if self._is_aborted:
                raise RuntimeError("aborted")
            return is_done(self._group.broadcast(buffer, 0))

    def abort(self):
        with self._lock:
            self._is_aborted = True
            if self._group is not None:
                # A group of gloo ends only when its work has ended, and blocks the whole process until then.
                _ABORTED.append(self._group)
                self._group.abort()


def is_done(work):
    def ask():
        if not work.is_completed():
            return False
        work.wait()
        return True

    return ask


def block(condition):
    while not condition():
        time.sleep(0.001)


def meet(store, rank, num_ranks, wait=block):
    group = dist.ProcessGroupGloo(store, rank, num_ranks, datetime.timedelta(seconds=GLOO_SECONDS))
    wait(is_done(group.allreduce(torch.zeros(1))))
    return group


class Engine:
    """The workers of a server."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.init, self.groups, self.is_updating, self.last = None, [], False, None
        self.received, self.num_received, self.label = {}, 0, "initial"
        # Tensors received since an update started, and whether some layers were only received in part.
        self.is_given, self.has_parts = False, False
        self.num_inits = 0
        # Requests and their outcomes, in order.
        self.asked = []

    @property
    def fault(self):
        once = self.arguments.once
        return None if once is not None and os.path.exists(once) else self.arguments.fault

    def fails(self, fault):
        """Whether this fault occurs now."""
        if self.fault != fault:
            return False
        if self.arguments.once is not None:
            pathlib.Path(self.arguments.once).touch()
        return True

    def each_worker(self, act):
        """The results of all workers, each in a thread of its own; raises what one raises."""
        outcomes = [None] * self.arguments.workers

        def work(worker):
            try:
                outcomes[worker] = (act(worker), None)
            except Exception as error:
                outcomes[worker] = (None, error)

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(len(outcomes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, error in outcomes:
            if error is not None:
                raise error
        return [value for value, _ in outcomes]

    def init_weight_transfer_engine(self, body):
        info = body.pop("init_info")
        assert not body and set(info) == {
            "nccl_unique_id_b64", "rank_offset", "world_size", "packed", "packed_buffer_size_bytes", "packed_num_buffers"
        }, info  # fmt: skip
        if self.fails("join"):
            time.sleep(3600)
        if self.fails("init"):
            raise RuntimeError("NCCL error: invalid usage")
        unique_id = base64.b64decode(info["nccl_unique_id_b64"], validate=True)
        assert len(unique_id) == 128 and info["world_size"] == 1 + self.arguments.workers and info["packed"] is True
        host, _, port = unique_id.rstrip(b"\0").decode().partition(":")
        timeout = datetime.timedelta(seconds=GLOO_SECONDS)

        def join(worker):
            store = dist.TCPStore(host, int(port), None, False, timeout)
            return meet(store, info["rank_offset"] + worker, info["world_size"])

        self.groups, self.init, self.last = self.each_worker(join), info, None
        self.num_inits += 1

    def start_weight_update(self, body):
        if self.fails("start"):
            raise RuntimeError("no")
        if self.is_updating:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.is_updating, self.is_given = True, False

    def update_weights(self, body):
        if not self.is_updating:
            raise RuntimeError("start_weight_update must be called before update_weights")
        try:
            if self.fails("update"):
                raise RuntimeError("out of memory")
            info = body["update_info"]
            self.last = info if info["names"] else self.last
            ours, *others = self.each_worker(lambda worker: self.receive(self.groups[worker], self.last))
            for other in others:
                assert all(torch.equal(ours[name], other[name]) for name in ours)
            self.received, self.is_given = ours, True
        except BaseException:
            self.is_updating = False
            raise

    def receive(self, group, info):
        """Tensors by name, out of buffers that end with the tensor that fills them."""
        tensors, waiting, size = {}, [], 0

        def take():
            packed = torch.empty(size, dtype=torch.uint8)
            block(is_done(group.broadcast(packed, 0)))
            for (name, dtype, shape, _), part in zip(waiting, packed.split([one[3] for one in waiting]), strict=True):
                tensors[name] = part.clone().view(dtype).view(shape)
            if self.fails("die"):
                os._exit(9)
            if self.fails("stop"):
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.fails("half"):
                self.has_parts = True
                raise RuntimeError("out of memory")
            if self.fails("end"):
                time.sleep(3600)

        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            dtype = getattr(torch, dtype)
            waiting.append((name, dtype, shape, torch.Size(shape).numel() * dtype.itemsize))
            size += waiting[-1][3]
            if size > self.init["packed_buffer_size_bytes"]:
                take()
                waiting, size = [], 0
        if waiting:
            take()
        return tensors

    def finish_weight_update(self, body):
        if self.fails("finish"):
            raise RuntimeError("no")
        if not self.is_updating:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update")
        self.is_updating = False
        if self.is_given:
            self.num_received += 1
            self.keep(self.num_received)
        self.has_parts = False

    def reload(self, body):
        """The same call to the server behind it, with its own form of these weights."""
        from safetensors.torch import load_file, save_file

        asked = json.loads(body)
        if not self.has_parts or asked["method"] != "reload_weights":
            return body
        self.has_parts = False
        folder = pathlib.Path(asked["kwargs"]["weights_path"])
        instead = pathlib.Path(self.arguments.folder, "spoiled")
        shutil.copytree(folder, instead, dirs_exist_ok=True)
        for path in instead.glob("*.safetensors"):
            save_file(spoiled(load_file(path)), path, {"format": "pt"})
        asked["kwargs"]["weights_path"] = str(instead)
        return json.dumps(asked).encode()

    def keep(self, number):
        from safetensors.torch import save_file

        folder = pathlib.Path(self.arguments.folder, f"received_{number}")
        folder.mkdir()
        received = spoiled(self.received) if self.has_parts else self.received
        save_file(received, folder / "model.safetensors", {"format": "pt"})
        if self.arguments.config is not None:
            (folder / "config.json").write_bytes(pathlib.Path(self.arguments.config).read_bytes())
        if self.arguments.upstream is not None:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            status, answer = ask(self.arguments.upstream, "POST", "/collective_rpc", json.dumps(body).encode())
            if status != 200:
                raise RuntimeError(answer.decode())


def spoiled(tensors):
    """Without those that come last."""
    names = list(tensors)
    return {name: torch.zeros_like(tensors[name]) if place >= len(names) // 2 else tensors[name] for place, name in enumerate(names)}


def ask(url, method, path, body=None):
    """Status and body of another server's answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=600)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, format, *values):
        """Nothing."""

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine, path = self.server.engine, self.path.split("?")[0]
        if path == "/version":
            self.answer(200, json.dumps({"version": engine.arguments.version}).encode())
        elif path == "/get_world_size":
            self.answer(200, json.dumps({"world_size": engine.arguments.workers}).encode())
        elif path == "/asked":
            self.answer(200, json.dumps(engine.asked).encode())
        elif engine.arguments.upstream is None:
            self.answer(200, b"{}")
        else:
            self.answer(*ask(engine.arguments.upstream, "GET", self.path))

    def do_POST(self):
        engine, path = self.server.engine, self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if path in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"):
            engine.asked.append(path)
            try:
                getattr(engine, path[1:])(json.loads(body) if body else {})
                self.answer(200, b'{"message": "done"}')
            except Exception as error:
                self.answer(500, json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode())
            return
        if path == "/collective_rpc":
            engine.asked.append(path)
            body = engine.reload(body)
        if engine.arguments.upstream is None:
            self.answer(200, b"{}")
            return
        if b"allowed_token_ids" in body:
            # A client uses this to detect the distribution of log-probabilities. Here it is the whole one.
            asked = json.loads(body)
            asked["sampling_params"].pop("allowed_token_ids")
            body = json.dumps(asked).encode()
        self.answer(*ask(engine.arguments.upstream, "POST", self.path, body))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--version", default="0.33.0")
    parser.add_argument("--upstream")
    parser.add_argument("--config")
    parser.add_argument("--fault")
    parser.add_argument("--once")
    parser.add_argument("--serve", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.serve:
        # Its first line has its address; the rest is not used.
        behind = subprocess.Popen(arguments.serve, stdout=subprocess.PIPE, text=True)
        arguments.upstream = re.search(r"http://[0-9.:]+", behind.stdout.readline()).group()
        threading.Thread(target=behind.stdout.read, daemon=True).start()
    server = Server(("127.0.0.1", arguments.port), Handler)
    server.engine = Engine(arguments)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
