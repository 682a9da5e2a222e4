"""Several ranks: they give the numbers of one, whatever the calls, and what happens when one of them is lost."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, ROOT, Case, call, golden_folder, open_settings, random_columns, save_tiny, tiny_config

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tamis.learner.checkpoint import RankOutput
from tamis.learner.learner import Learner
from tamis.learner.protocol import DiskError
from tamis.learner.ranks import Watch, _Peer, _Pulse
from test_server import Client
from warm import Program

# Seconds within which everything must end.
LIMIT = 120
SHAPE = ((5, (7, 1, 12)), (1, (4,)), (9, (3, 20)), (4, (6, 6)), (2, (11,)))
TOLERANCE = 1e-5


def port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Refusal(Exception):
    def __init__(self, status, error):
        super().__init__(error["message"])
        self.status, self.kind, self.hint = status, error["kind"], error["hint"]


class Alone:
    """A learner of one rank, in this process."""

    def __init__(self):
        self.learner = None

    def call(self, name, settings=None, given=None):
        if name == "open":
            self.learner = Learner()
        return call(self.learner, name, settings, given)


class Gang:
    """Processes of `python -m tamis.learner`, and a controller's connection to the first of them."""

    program = ("-m", "tamis.learner")

    def __init__(self, number, heartbeat=5.0, startup_timeout=60.0, missing=(), call_timeout=600.0, **variables):
        # Each rank begins in a folder of its own: /proc/self/cwd is another one for each.
        self.folder = tempfile.TemporaryDirectory(prefix="gang-")
        self.own_folders = [pathlib.Path(self.folder.name, f"own_{rank}") for rank in range(number)]
        for own in self.own_folders:
            own.mkdir()
        self.number = number
        self.address = f"unix:{self.folder.name}/socket"
        self.logs = [pathlib.Path(self.folder.name, f"rank_{rank}") for rank in range(number)]
        self.client, self.processes = None, []
        self.call_timeout, self.variables = call_timeout, variables
        self.start = lambda: self.start_processes(number, heartbeat, startup_timeout, missing)
        self.start()

    def start_processes(self, number, heartbeat, startup_timeout, missing):
        master = str(port())
        self.processes = []
        for rank in range(number):
            if rank in missing:
                continue
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "RANK": str(rank),
                "WORLD_SIZE": str(number), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master,
                **self.variables,
            }  # fmt: skip
            command = [*self.program, "--listen", self.address, "--heartbeat", str(heartbeat)]
            command += ["--startup-timeout", str(startup_timeout), "--call-timeout", str(self.call_timeout)]
            with open(self.logs[rank], "a") as log:
                own = self.own_folders[rank]
                self.processes.append(Program(command, environment, log, cwd=own))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.client is not None:
            self.client.close()
        self.kill()
        self.folder.cleanup()

    def kill(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def wait_for_others(self, victim):
        """Until all ranks but this one have ended."""
        for rank, process in enumerate(self.processes):
            if rank != victim:
                process.wait(LIMIT)

    def start_again(self):
        """All ranks, as a cluster does if it finds one lost."""
        self.kill()
        self.start()

    def connect(self):
        until = time.monotonic() + LIMIT
        while not os.path.exists(self.address.removeprefix("unix:")):
            if time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                raise AssertionError(self.log())
            time.sleep(0.05)
        self.client = Client(self.address, timeout=LIMIT)
        return self

    def log(self):
        return "\n".join(log.read_text() for log in self.logs if log.exists())

    def call(self, name, settings=None, given=None):
        """As `support.call`; an error as status and body."""
        if given and "rank" in given:
            given = {**given, "rank": self.spread(given)}
        try:
            status, values, columns = self.client.post(name, settings, given)
        except OSError as error:
            raise AssertionError(self.log()) from error
        # No two are the same.
        seconds = values.pop("rank_seconds", None)
        assert seconds is None or len(seconds) == self.number and min(seconds) >= 0.0
        if status != 200:
            raise Refusal(status, values["error"])
        return values, columns

    def spread(self, columns):
        """The sequences of a wave over the ranks; prompts stay whole."""
        num_prompts = columns["prompt_offset"].numel() - 1
        return (columns["prompt_of"] * self.number // max(1, num_prompts)).int()

    def health(self):
        client = Client(self.address, timeout=LIMIT)
        try:
            return client.get("health")[1]
        finally:
            client.close()

    def wait(self):
        """The exit codes of all processes."""
        until = time.monotonic() + LIMIT
        for process in self.processes:
            process.wait(max(0.1, until - time.monotonic()))
        return [process.returncode for process in self.processes]


WAVES = [random_columns(50, seed, SHAPE) for seed in (1, 2)]
# Fewer prompts than ranks: some ranks have nothing to compute.
WAVES.append(random_columns(50, 3, ((3, (5, 2)),)))


def derivatives(found):
    """Made-up ones, of what a pass gave."""
    names = ["value"] if "value" in found else ["logprob", "entropy"]
    return {name: torch.cos(found[name] * 5) for name in names}


def learn(learner, network="policy"):
    """An update over all waves: what the passes gave, and the norm."""
    found = []
    for wave in WAVES:
        _, columns = learner.call("forward_hold", {"network": network}, wave)
        # A pass without a gradient in between changes nothing.
        _, again = learner.call("forward", {"network": network}, wave)
        found += [columns, again]
        learner.call("backward", {}, derivatives(columns))
    answer, norm = learner.call("optim_step", {"network": network, "learning_rate": 1e-2})
    assert answer["skipped"] is False
    return found, norm["grad_norm"]


def save(learner, folder, name, content="checkpoint"):
    path = pathlib.Path(folder, name)
    path.mkdir()
    learner.call("save", {"folder": str(path), "content": content, "dtype": "f32", "untied": False})
    return path


def play(learner, into, **opening):
    """Every call that a run makes to a learner: its answers, and two checkpoints."""
    told = []
    learner.call("open", open_settings(**opening))
    has_adapter, has_critic = "lora" in opening.get("options", {}), "critic" in opening
    if not has_adapter and "reference" not in opening:
        learner.call("copy", {"to": "reference"})
    if has_critic:
        learner.call("copy", {"to": "critic"})
    for _ in range(2):
        if has_critic:
            told.append(learn(learner, "critic"))
        told.append(learn(learner))
    first = save(learner, into, "first")
    learner.call("keep")
    told.append(learn(learner))
    networks = ["before", "policy", *(["base"] if has_adapter else []), *([] if has_adapter and "reference" not in opening else ["reference"])]
    told += [learner.call("forward", {"network": network}, WAVES[0])[1] for network in networks]
    learner.call("restore")
    told.append(learner.call("forward", {"network": "policy"}, WAVES[0])[1])
    # A gradient whose norm is taken and which is then dropped.
    _, columns = learner.call("forward_hold", {"network": "policy"}, WAVES[1])
    learner.call("backward", {}, derivatives(columns))
    told.append(learner.call("grad_norm", {"network": "policy"})[1]["grad_norm"])
    assert learner.call("check")[0] == {"not_finite": None}
    told.append(learn(learner))
    learner.call("publish", {"version": 1})
    save(learner, into, "weights", "weights")
    return told, first, save(learner, into, "last")


def flat(told):
    if isinstance(told, torch.Tensor):
        return [told]
    values = told.values() if isinstance(told, dict) else told
    return [tensor for part in values for tensor in flat(part)]


def tensors(folder):
    """Every tensor of a checkpoint, by file and name."""
    files = sorted(folder.rglob("*.safetensors"))
    return {(str(path.relative_to(folder)), name): one for path in files for name, one in load_file(path).items()}


LORA = {"rank": 2, "alpha": 4.0, "seed": 1}
QWEN3 = str(golden_folder("qwen3"))
KINDS = {
    "llama": {"policy": golden_folder("llama"), "recompute_activations": True, "options": {"offload_reference": True}},
    "qwen2 with a critic": {"policy": golden_folder("qwen2"), "critic": {"folder": None}, "reference": QWEN3},
    "adapter": {"policy": golden_folder("qwen3"), "options": {"lora": LORA}},
    # Its experts are held otherwise than in the files, and some ranks have none of them.
    "mixture with an adapter": {
        "policy": {"kind": "Qwen3MoeConfig", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "options": {"lora": LORA, "offload_reference": True}, "reference": QWEN3,
    },
    "mixture": {"policy": {"kind": "Qwen3MoeConfig", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}},
    # Sequences that are passed one by one: some ranks have more of them.
    "phi3, one by one": {
        "policy": {
            "kind": "Phi3Config", "original_max_position_embeddings": 32, "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 3, "long_factor": [2.0] * 3,
                "original_max_position_embeddings": 32,
            },
        },
    },
    # The first attention that is tried breaks off in the middle of a pass.
    "gemma2": {"policy": {"kind": "Gemma2Config", "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 6}},
}  # fmt: skip

# Models that are distributed differently over three ranks than over two: uneven parts, or none.
AT_THREE = ["qwen2 with a critic", "mixture with an adapter", "phi3, one by one"]


@functools.cache
def models():
    return tempfile.TemporaryDirectory(prefix="models-")


def made(kind, config):
    """The folder of a tiny model."""
    folder = pathlib.Path(models().name, kind)
    if not folder.exists():
        save_tiny(folder, tiny_config(**config))
    return folder


def opening(kind):
    own = dict(KINDS[kind])
    folder = own.pop("policy")
    settings = {"folder": made(kind, folder) if isinstance(folder, dict) else folder, **own}
    if "critic" in settings:
        settings["critic"] = {**settings["critic"], "optimizer": OPTIMIZER}
    return settings


@functools.cache
def told_alone(kind):
    """The answer of one rank (`play`)."""
    folder = pathlib.Path(models().name, f"alone {kind}")
    folder.mkdir()
    return play(Alone(), folder, **opening(kind))


class Ranks(Case):
    @classmethod
    def setUpClass(cls):
        # Each serves one run after another.
        cls.gangs = {number: cls.enterClassContext(Gang(number)).connect() for number in (2, 3)}

    def folder(self):
        return self.enterContext(tempfile.TemporaryDirectory())

    def assert_tensors_close(self, found, expected, tolerance):
        self.assertEqual(found.keys(), expected.keys())
        for name, one in found.items():
            self.assert_close(one, expected[name], tolerance, str(name))

    def test_ranks_give_the_numbers_of_one(self):
        for number, gang in self.gangs.items():
            for kind in KINDS if number == 2 else AT_THREE:
                with self.subTest(kind, ranks=number):
                    told, _, last = told_alone(kind)
                    of_gang, first_of_gang, last_of_gang = play(gang, self.folder(), **opening(kind))
                    for place, (one, other) in enumerate(zip(of_gang, told, strict=True)):
                        # The first update of each network. AdamW makes much of a small number's last bits, so
                        # everything after a step differs by more.
                        tolerance = TOLERANCE if place <= ("critic" in kind) else 1e-2
                        for found, expected in zip(flat(one), flat(other), strict=True):
                            self.assert_close(found, expected, tolerance, kind)
                    # Weights and moments after five updates.
                    self.assert_tensors_close(tensors(last_of_gang), tensors(last), 1e-2)
                    self.check_loading(self.gangs[5 - number], kind, first_of_gang)
            self.assertNotIn("has read all of it", gang.log())
        self.assertRegex(self.gangs[2].log(), "gemma2: attention tamis_sequences is not used: .*softcap")

    def test_the_first_update_is_that_of_one(self):
        """Every tensor's gradient, which is the first moment over 1 - beta1, and what AdamW makes of it."""
        for number, kind in ((2, "qwen2 with a critic"), (3, "llama"), (2, "adapter"), (3, "mixture with an adapter")):
            with self.subTest(kind, ranks=number):
                both = []
                for learner in (Alone(), self.gangs[number]):
                    learner.call("open", open_settings(**opening(kind)))
                    if "critic" in kind:
                        learner.call("copy", {"to": "critic"})
                        learn(learner, "critic")
                    learn(learner)
                    both.append(tensors(save(learner, self.folder(), "first")))
                alone, several = both
                self.assertEqual(several.keys(), alone.keys())
                moments = {key: one for key, one in alone.items() if "optimizer" in key[0]}
                self.assertGreater(len(moments), 10)
                for key, one in moments.items():
                    self.assert_close(several[key], one, TOLERANCE, f"{kind} {key}")
                # If a gradient is nearly 0, AdamW's first step follows the sign of rounding.
                for key, one in alone.items():
                    if key not in moments and one.numel():
                        apart = (several[key] - one).abs().double()
                        self.assertLess(apart.median().item(), 1e-6, f"{kind} {key}")
                        self.assertLessEqual(apart.max().item(), 2.1e-2, f"{kind} {key}")

    def test_gradients_that_are_summed_over_ranks_after_every_wave_are_those_of_one(self):
        """As if a whole gradient did not fit on a rank."""
        kind = "qwen2 with a critic"
        both = []
        with FaultyGang(2, TAMIS_FAULT="no room").connect() as gang:
            for learner in (Alone(), gang):
                learner.call("open", open_settings(**opening(kind)))
                learn(learner)
                both.append(tensors(save(learner, self.folder(), "first")))
        for key, one in both[0].items():
            if "optimizer" in key[0]:
                self.assert_close(both[1][key], one, TOLERANCE, str(key))

    def test_ranks_in_bf16_give_the_numbers_of_one_and_sum_gradients_in_f32(self):
        # The first moment is the gradient.
        optimizer = {**OPTIMIZER, "beta1": 0.0, "max_grad_norm": None}
        gradients = []
        for learner in (Alone(), self.gangs[2]):
            opened = learner.call("open", open_settings(golden_folder("qwen2"), optimizer=optimizer, options={"dtype": "bf16"}))
            self.assertEqual(opened[0]["dtype"], "bf16")
            _, columns = learner.call("forward_hold", {"network": "policy"}, WAVES[0])
            learner.call("backward", {}, {"logprob": torch.ones_like(columns["logprob"])})
            learner.call("optim_step", {"network": "policy", "learning_rate": 1e-3})
            saved = tensors(save(learner, self.folder(), "saved"))
            moments = {key: one for key, one in saved.items() if key[1].startswith("first.")}
            gradients.append((columns, moments))
        (columns, alone), (of_gang, several) = gradients
        self.assertGreater(len(alone), 10)
        for name, one in of_gang.items():
            self.assert_close(one, columns[name], 1e-2, name)
        rounded = []
        for key, one in several.items():
            # Eight bits of a number, and sums of a few dozen of them.
            self.assert_close(one, alone[key], 3e-2, str(key))
            rounded.append((one == one.bfloat16()).double().mean().item())
        self.assertLess(sum(rounded) / len(rounded), 0.5, "a sum of two numbers of bf16 is seldom one")

    def check_loading(self, others, kind, saved):
        """A checkpoint of several ranks is loaded by one, and by another number of them, and saved again, to
        the bit."""
        alone = Alone()
        expected = tensors(saved)
        for learner in (alone, others):
            learner.call("open", open_settings(**opening(kind)))
            learner.call("load", {"folder": str(saved), "content": "checkpoint"})
            again = tensors(save(learner, self.folder(), "again"))
            self.assertEqual(again.keys(), expected.keys())
            for name, one in again.items():
                if "adapter" in kind and name[0] == "model.safetensors":
                    # The adapter is merged in another order of operations.
                    self.assert_close(one, expected[name], 1e-6, str(name))
                else:
                    self.assert_same(one, expected[name], str(name))


def spoil(path, value):
    """Makes every number of a file of weights another one."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = {name: torch.full_like(one, value) for name, one in load_file(path).items()}
    save_file(tensors, path, metadata)


class FaultyGang(Gang):
    program = (str(pathlib.Path(__file__).parent / "faulty_learner.py"),)


class Losses(Case):
    """Lost ranks: what the controller gets, how soon, and what remains."""

    def ready(self, number=2, heartbeat=2.0, kind=Gang, **more):
        gang = self.enterContext(kind(number, heartbeat, **more)).connect()
        gang.call("open", open_settings(golden_folder("qwen2")))
        return gang

    def assert_lost(self, gang, victim, what, name="forward", seconds=10.0):
        began = time.monotonic()
        with self.assertRaises((Refusal, AssertionError)) as raised:
            while True:
                gang.call(name, {"network": "policy"}, WAVES[0])
        took = time.monotonic() - began
        self.assertLess(took, seconds)
        error = raised.exception
        self.assertIsInstance(error, Refusal, str(error))
        self.assertEqual((error.status, error.kind), (503, "lost"))
        self.assertIn(f"rank {victim} (", str(error))
        self.assertIn(f"process {gang.processes[victim].pid}) {what}", str(error))

    def test_a_file_that_one_rank_cannot_read_is_told_and_the_next_run_is_served(self):
        gang = self.enterContext(Gang(3)).connect()
        for own in gang.own_folders:
            for name in ("policy", "critic", "reference"):
                shutil.copytree(golden_folder("qwen2"), own / name)
        here = pathlib.Path("/proc/self/cwd")
        critic = {"critic": {"folder": str(here / "critic"), "optimizer": OPTIMIZER}}
        settings = open_settings(here / "policy", reference=str(here / "reference"), **critic)
        gang.call("open", settings)
        damages = {
            "config.json": lambda path: path.unlink(),
            # Not named in a header: it is found when it is read.
            "model.safetensors": lambda path: spoil(path, float("nan")),
        }
        for model in ("policy", "critic", "reference"):
            for rank, (name, damage) in zip((0, 2) if model != "critic" else (2, 0), damages.items(), strict=True):
                with self.subTest(model=model, name=name, rank=rank):
                    path = gang.own_folders[rank] / model / name
                    whole = path.read_bytes()
                    damage(path)
                    began = time.monotonic()
                    with self.assertRaises(Refusal) as raised:
                        gang.call("open", settings)
                    self.assertLess(time.monotonic() - began, 20.0)
                    path.write_bytes(whole)
                    what = {"config.json": "No such file", "model.safetensors": "are not finite"}[name]
                    self.assertRegex(str(raised.exception), f"/proc/self/cwd/{model}.*{what}.* \\(rank {rank}\\)$")
                    self.assertEqual(raised.exception.status, 422)
        gang.call("open", settings)
        learn(gang)
        # A checkpoint in which the others' parts are not mistaken for a whole.
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        saved = save(gang, folder, "saved")
        for own in gang.own_folders:
            shutil.copytree(saved, own / "saved")
        spoil(gang.own_folders[1] / "saved" / "optimizer.safetensors", float("inf"))
        with self.assertRaisesRegex(Refusal, r"not finite.* \(rank 1\)$"):
            gang.call("load", {"folder": str(here / "saved"), "content": "checkpoint"})
        gang.call("load", {"folder": str(saved), "content": "checkpoint"})
        learn(gang)

    def test_a_rank_that_is_killed_is_told_and_all_end(self):
        for victim in (1, 2):
            with self.subTest(victim=victim):
                gang = self.ready(3)
                gang.processes[victim].kill()
                self.assert_lost(gang, victim, "has ")
                codes = gang.wait()
                self.assertEqual(codes[victim], -signal.SIGKILL)
                self.assertTrue(all(code != 0 for code in codes), codes)
                self.assertEqual(codes[0], 75)

    def test_a_rank_that_stands_still_is_told_and_the_others_end(self):
        gang = self.ready()
        gang.processes[1].send_signal(signal.SIGSTOP)
        self.assert_lost(gang, 1, "has given no sign of life for 2 s")
        self.assertEqual(gang.processes[0].wait(LIMIT), 75)
        gang.processes[1].send_signal(signal.SIGCONT)
        self.assertNotEqual(gang.processes[1].wait(LIMIT), 0)

    def test_an_error_that_one_rank_has_alone_ends_all(self):
        gang = self.ready(kind=FaultyGang, TAMIS_FAULT="refuses")
        began = time.monotonic()
        with self.assertRaises(Refusal) as raised:
            gang.call("forward_hold", {"network": "policy"}, WAVES[0])
        self.assertLess(time.monotonic() - began, 30.0)
        self.assertEqual((raised.exception.status, raised.exception.kind), (503, "lost"))
        self.assertRegex(
            str(raised.exception), r"^rank 1 \(.*\) failed: not here; and rank 0 \(.*\) has not ended /v1/forward_hold$"
        )
        self.assertEqual(gang.wait(), [75, 75])

    def test_what_one_rank_has_not_the_memory_for_is_told_with_what_takes_less(self):
        gang = self.ready(kind=FaultyGang, TAMIS_FAULT="full")
        with self.assertRaises(Refusal) as raised:
            gang.call("forward_hold", {"network": "policy"}, WAVES[0])
        self.assertEqual(raised.exception.kind, "failed", str(raised.exception))
        self.assertRegex(str(raised.exception), r"rank 1 \(.*\) failed: OutOfMemoryError: CUDA out of memory")
        self.assertIn("train.micro_batch_tokens", raised.exception.hint)
        self.assertTrue(all(code != 0 for code in gang.wait()))

    def test_an_exception_of_one_rank_is_told_by_its_name(self):
        for heartbeat in (2.0, 10.0):
            with self.subTest(heartbeat=heartbeat):
                gang = self.ready(3, heartbeat, kind=FaultyGang, TAMIS_FAULT="fails")
                with self.assertRaises(Refusal) as raised:
                    gang.call("forward_hold", {"network": "policy"}, WAVES[0])
                self.assertEqual(raised.exception.kind, "lost")
                self.assertRegex(str(raised.exception), r"^rank 1 \(.*\) failed: ValueError: no such thing")
                self.assertEqual(gang.wait()[0], 75)

    def test_a_rank_that_hangs_in_a_call_is_told_and_all_end(self):
        gang = self.enterContext(FaultyGang(2, 1.0, TAMIS_FAULT="hangs")).connect()
        began = time.monotonic()
        with self.assertRaises(Refusal) as raised:
            gang.call("open", open_settings(golden_folder("qwen2")))
        self.assertLess(time.monotonic() - began, 60.0)
        self.assertRegex(str(raised.exception), r"^rank 1 \(.*\) has been in /v1/open for \d+ s, \d+ s longer than rank 0 ")
        self.assertEqual(gang.wait(), [75, 75])

    def test_a_pass_in_whose_middle_all_hang_is_told_and_all_end(self):
        gang = self.ready(kind=FaultyGang, TAMIS_FAULT="stands")
        for _ in range(3):
            gang.call("forward_hold", {"network": "policy"}, WAVES[0])
        began = time.monotonic()
        with self.assertRaisesRegex(Refusal, r"no rank has ended /v1/forward_hold for \d+ s, 20 times the slowest for as many tokens"):
            gang.call("forward_hold", {"network": "policy"}, WAVES[0])
        self.assertLess(time.monotonic() - began, 60.0)
        self.assertEqual(gang.wait(), [75, 75])

    def test_a_call_that_no_rank_ends_has_its_time(self):
        with self.assertRaisesRegex(Refusal, "no rank has ended /v1/open for .* the longest that a call may take"):
            gang = self.ready(call_timeout=0.1)
            # It is checked from time to time: one may have ended in between.
            for _ in range(100):
                gang.call("open", open_settings(golden_folder("qwen2")))

    def test_ranks_that_have_not_ended_a_call_in_its_time_are_named(self):
        watch = Watch.__new__(Watch)
        watch._ranks = types.SimpleNamespace(heartbeat=5.0, call_timeout=10.0)
        now = time.monotonic()
        watch._peers = [_Peer(rank, "host", 10 + rank, now, call=1) for rank in range(3)]
        running = (1, "/v1/save", now - 11.0)
        longest = "ended /v1/save for 11 s, the longest that a call may take"
        self.assertEqual(watch._find_split(*running), f"no rank has {longest}")
        watch._peers[2].note(1, True, None)
        names = ["rank 0 (host, process 10)", "rank 1 (host, process 11)"]
        self.assertEqual(watch._find_split(*running), f"{', '.join(names)} has not {longest}")
        watch._peers[1].note(1, True, None)
        self.assertEqual(watch._find_split(*running), f"{names[0]} has not {longest}")

    def test_a_loss_is_told_before_the_error_that_it_is_to_another_rank(self):
        told = []
        watch = Watch.__new__(Watch)
        watch._ranks, watch._secret = types.SimpleNamespace(heartbeat=1.0), "secret"
        watch._lost, watch._told = lambda *what: told.append(what), threading.Lock()
        watch._peers = [_Peer(rank, "host", 10 + rank, time.monotonic()) for rank in range(3)]
        ends = {}
        for rank in (1, 2):
            ends[rank], other = socket.socketpair()
            self.addCleanup(other.close)
            self.addCleanup(ends[rank].close)
            threading.Thread(target=watch._listen, args=(other,), daemon=True).start()
            ends[rank].sendall(f"secret {rank}\n".encode())
        ends[1].sendall(json.dumps({"failed": "connection reset", "full_at": None}).encode() + b"\n")
        time.sleep(0.3)
        ends[2].close()
        time.sleep(1.5)
        self.assertEqual(told, [("rank 2 (host, process 12) has ended", None)])

    def test_the_first_is_reached_at_the_address_of_others_where_its_own_is_a_loopback(self):
        store = types.SimpleNamespace(get=lambda _: f"127.0.0.1 {server.getsockname()[1]} secret".encode())
        others = {"MASTER_ADDR": "127.0.0.2"}
        with socket.create_server((others["MASTER_ADDR"], 0)) as server, mock.patch.dict(os.environ, others):
            pulse = _Pulse(types.SimpleNamespace(_store=store, rank=1, heartbeat=1.0))
            pulse.close()
            self.addCleanup(pulse._connection.close)
            self.addCleanup(pulse._lines.close)
            with server.accept()[0] as connection, connection.makefile() as lines:
                self.assertEqual(lines.readline(), "secret 1\n")

    def test_a_folder_that_the_first_cannot_flush_is_told_and_the_ranks_go_on(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        fault = folder / "fault"
        gang = self.ready(kind=FaultyGang, TAMIS_FAULT="stale", TAMIS_FAULT_FILE=str(fault))
        fault.touch()
        with self.assertRaisesRegex(Refusal, "[Ss]tale") as raised:
            save(gang, folder, "first")
        self.assertEqual(raised.exception.kind, "disk")
        fault.unlink()
        learn(gang)
        save(gang, folder, "second")

    def test_ranks_of_torchrun_on_two_machines_find_each_other_again(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        socket_path, at = folder / "socket", f"127.0.0.1:{port()}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={at}", "--rdzv-id=again", "-m", "tamis.learner"]
        command += ["--listen", f"unix:{socket_path}", "--heartbeat", "2", "--startup-timeout", "60"]
        with open(folder / "log", "w") as log:
            agents = [subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) for _ in range(2)]
        for agent in agents:
            self.addCleanup(agent.wait, LIMIT)
            # It ends its workers, which are in groups of their own.
            self.addCleanup(agent.terminate)

        def ranks(other_than):
            until = time.monotonic() + LIMIT
            while time.monotonic() < until:
                try:
                    with contextlib.closing(Client(f"unix:{socket_path}", timeout=LIMIT)) as client:
                        found = [rank["pid"] for rank in client.get("health")[1].get("ranks", [])]
                    if found and not set(found) & set(other_than):
                        return found
                except OSError:
                    pass
                time.sleep(0.2)
            raise AssertionError((folder / "log").read_text())

        first = ranks([])
        # Its agent counts a restart, that of the other does not.
        os.kill(first[1], signal.SIGKILL)
        ranks(first)
        client = Client(f"unix:{socket_path}", timeout=LIMIT)
        self.addCleanup(client.close)
        self.assertEqual(client.post("open", open_settings(golden_folder("qwen2")), None)[0], 200)

    def test_ranks_end_where_the_first_is_killed_or_stands_still(self):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how=how.name):
                gang = self.ready()
                began = time.monotonic()
                gang.processes[0].send_signal(how)
                self.assertEqual(gang.processes[1].wait(LIMIT), 75)
                self.assertLess(time.monotonic() - began, 10.0)
                self.assertIn("rank 1 ends: rank 0 ", gang.log())

    def test_health_names_the_ranks(self):
        gang = self.ready()
        ranks = gang.health()["ranks"]
        self.assertEqual([rank["rank"] for rank in ranks], [0, 1])
        self.assertEqual([rank["pid"] for rank in ranks], [process.pid for process in gang.processes])
        self.assertTrue(all(0.0 <= rank["age_seconds"] < 1.0 for rank in ranks), ranks)

    def test_refusals_leave_the_ranks_as_they_were(self):
        gang = self.ready()
        _, before = gang.call("forward", {"network": "policy"}, WAVES[0])
        outside = random_columns(500, 1, SHAPE)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        pathlib.Path(folder, "something").touch()
        for status, name, settings, given in (
            (400, "forward", {"network": "policy"}, outside),
            (409, "backward", {}, {}),
            (422, "forward", {"network": "critic"}, WAVES[0]),
            (400, "save", {"folder": folder, "content": "checkpoint", "dtype": "f32", "untied": False}, {}),
            (422, "load", {"folder": folder, "content": "checkpoint"}, {}),
            (422, "generate", {}, {}),
        ):
            with self.subTest(name), self.assertRaises(Refusal) as raised:
                gang.call(name, settings, given)
            self.assertEqual(raised.exception.status, status, raised.exception)
        _, after = gang.call("forward", {"network": "policy"}, WAVES[0])
        self.assert_same(before["logprob"], after["logprob"])

    def test_a_disk_that_takes_no_more_ends_nobody_s_wait(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "second").mkdir()
        for rank in (0, 1):
            output, gathered = RankOutput(folder, types.SimpleNamespace(rank=rank)), []

            def parts(name, gathered=gathered):
                for number in range(3):
                    gathered.append((name, number))
                    yield b"part"

            for name in ("first", "second", "third"):
                output.write(name, parts(name))
            # The first of them writes, and gathers with the others what it cannot write.
            self.assertEqual(len(gathered), 9)
            if rank == 0:
                with self.assertRaisesRegex(DiskError, "second"):
                    output.finish()
                (folder / "first").unlink()
            else:
                self.assertEqual(output.finish(), [])
            self.assertEqual([path.name for path in folder.iterdir()], ["second"])

    def test_a_rank_that_never_comes_is_named(self):
        with Gang(3, startup_timeout=3.0, missing=(1,)) as gang:
            codes = gang.wait()
            self.assertEqual(codes, [2, 2])
            self.assertIn("missing are the ranks 1; here are 0 (", gang.log())

    def test_all_end_well_where_nobody_calls_any_more(self):
        gang = self.enterContext(Gang(3)).connect()
        gang.call("open", {**open_settings(golden_folder("qwen2")), "orphan_timeout": 0.5})
        self.assertEqual(gang.wait(), [0, 0, 0], gang.log())
        self.assertNotIn("has ended", gang.log())
        self.assertNotIn("ends: rank 0", gang.log())


if __name__ == "__main__":
    unittest.main()
