"""Several ranks: the numbers of one, whatever is asked of them, and what happens when one of them is lost."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest

# First: it says so, and leaves the tests out, where PyTorch is missing.
from support import ROOT, Case, call, golden_folder, open_settings, random_columns

import torch
from safetensors.torch import load_file
from tamis.learner.checkpoint import RankOutput
from tamis.learner.learner import Learner
from tamis.learner.protocol import DiskError
from test_server import Client

# Seconds for what must come to its end.
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

    def __init__(self, number, heartbeat=5.0, startup_timeout=60.0, missing=()):
        self.folder = tempfile.TemporaryDirectory(prefix="gang-")
        self.number = number
        self.address = f"unix:{self.folder.name}/socket"
        self.logs = [pathlib.Path(self.folder.name, f"rank_{rank}") for rank in range(number)]
        self.client, self.processes = None, []
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
            }  # fmt: skip
            command = [sys.executable, "-m", "tamis.learner", "--listen", self.address, "--heartbeat", str(heartbeat)]
            command += ["--startup-timeout", str(startup_timeout)]
            with open(self.logs[rank], "a") as log:
                self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

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
        """All ranks, as a cluster does that finds one lost."""
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
    """Everything that a run asks of a learner: what it answered, and two checkpoints."""
    told = []
    learner.call("open", open_settings(**opening))
    has_adapter, has_critic = "lora" in opening.get("options", {}), "critic" in opening
    if not has_adapter:
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
    networks = ["before", "policy", "base" if has_adapter else "reference"]
    told += [learner.call("forward", {"network": network}, WAVES[0])[1] for network in networks]
    learner.call("restore")
    told.append(learner.call("forward", {"network": "policy"}, WAVES[0])[1])
    # A gradient that is looked at and forgotten.
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


KINDS = {
    "llama": {"policy": golden_folder("llama"), "recompute_activations": True},
    "qwen2 with a critic": {"policy": golden_folder("qwen2"), "critic": {"folder": None}},
    "adapter": {"policy": golden_folder("qwen3"), "options": {"lora": {"rank": 2, "alpha": 4.0, "seed": 1}}},
}


def opening(kind):
    own = dict(KINDS[kind])
    settings = {"folder": own.pop("policy"), **own}
    if "critic" in settings:
        from support import OPTIMIZER

        settings["critic"] = {**settings["critic"], "optimizer": OPTIMIZER}
    return settings


class Ranks(Case):
    def folder(self):
        return self.enterContext(tempfile.TemporaryDirectory())

    def assert_tensors_close(self, found, expected, tolerance):
        self.assertEqual(found.keys(), expected.keys())
        for name, one in found.items():
            self.assert_close(one, expected[name], tolerance, str(name))

    def test_ranks_give_the_numbers_of_one(self):
        for number in (2, 3):
            with Gang(number).connect() as gang:
                for kind in KINDS:
                    with self.subTest(kind, ranks=number):
                        told, _, last = play(Alone(), self.folder(), **opening(kind))
                        of_gang, first_of_gang, last_of_gang = play(gang, self.folder(), **opening(kind))
                        for place, (one, other) in enumerate(zip(of_gang, told, strict=True)):
                            # The first update of each network; AdamW makes much of a small number's last bits, so
                            # that what comes after a step differs by more.
                            tolerance = TOLERANCE if place <= ("critic" in kind) else 1e-2
                            for found, expected in zip(flat(one), flat(other), strict=True):
                                self.assert_close(found, expected, tolerance, kind)
                        # Weights and moments after five updates.
                        self.assert_tensors_close(tensors(last_of_gang), tensors(last), 1e-2)
                        self.check_loading(gang, kind, first_of_gang)
            self.assertEqual(gang.wait() and None, None)

    def check_loading(self, gang, kind, saved):
        """What several ranks have saved is loaded by one, and saved again, to the bit; and the other way round."""
        alone = Alone()
        expected = tensors(saved)
        for learner in (alone, gang):
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


class Losses(Case):
    """What a controller hears, how soon, and what is left."""

    def ready(self, number=2, heartbeat=1.0):
        gang = self.enterContext(Gang(number, heartbeat)).connect()
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
        self.assert_lost(gang, 1, "has given no sign of life for 1 s")
        self.assertEqual(gang.processes[0].wait(LIMIT), 75)
        gang.processes[1].send_signal(signal.SIGCONT)
        self.assertNotEqual(gang.processes[1].wait(LIMIT), 0)

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
        gang = self.enterContext(Gang(2)).connect()
        gang.call("open", {**open_settings(golden_folder("qwen2")), "orphan_timeout": 0.5})
        self.assertEqual(gang.wait(), [0, 0])


if __name__ == "__main__":
    unittest.main()
