"""Runs of `tamis train` that learn in PyTorch, beside the same runs on the native engine.

They need the program: `cargo build -p tamis-cli`, or its path in TAMIS_PROGRAM. Without it they are left out.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import support
import warm

PROGRAM = pathlib.Path(os.environ.get("TAMIS_PROGRAM", support.ROOT / "target/debug/tamis"))
TINY = """
run: {seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 4
  gen_batch_size: 8
sft: {steps: 0}
rollout: {n: 4, max_response_length: 4}
reward: [{kind: length, max_length: 2, scale: 2}, {kind: number}]
filter: {kind: variance, metric: seq_reward}
schedule: {max_num_gen_batches: 50}
train:
  ppo_mini_batch_size: 2
  total_steps: 4
  optimizer: {learning_rate: 1e-3}
validate: {test_freq: 2, before_train: true, num_samples_shown: 1}
checkpoint: {save_freq: 2}
"""

PPO = ["preset=ppo", "~filter", "data.gen_batch_size=4"]

# The two sides of the accounting of a step.
SOURCES = ("generated", "carried_in", "in_flight_in")
ENDS = (
    "trained", "left_out", "dropped", "surplus", "stale", "failed", "aborted", "carried_out", "in_flight_out",
)  # fmt: skip
ACCOUNTS = ("groups/", "trajectories/", "tokens/", "schedule/max_lag")


@unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "config.yaml").write_text(TINY)

    def command(self, *arguments):
        return [str(PROGRAM), "train", *arguments]

    def train(self, *arguments):
        done = subprocess.run(self.command(*arguments), cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stderr

    def learner(self, python=None):
        return ["learner.backend=torch", "learner.device=cpu", f"learner.python={python or warm.interpreter()}"]

    def torch(self, name, *arguments, python=None):
        return self.train("config.yaml", f"run.name={name}", *self.learner(python), *arguments)

    def native(self, name, *arguments):
        return self.train("config.yaml", f"run.name={name}", *arguments)

    def rows(self, name):
        lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines(keepends=True)
        # A run that was killed may have left half of one.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def weights(self, name, step=4, network=""):
        return (self.folder / "runs" / name / f"checkpoints/step_{step}/{network}model.safetensors").read_bytes()

    def assert_alike(self, first, second, tolerance=1e-4, num_rows=3):
        """The first steps agree to rounding; the same prompts and completions make them."""
        names = ["loss", "actor/grad_norm", "actor/entropy", "critic/score/mean", "response_length/mean", "critic/vf_loss"]
        for one, other in zip(self.rows(first)[:num_rows], self.rows(second)[:num_rows], strict=True):
            for name in [name for name in names if name in one]:
                self.assertAlmostEqual(one[name], other[name], delta=tolerance * max(1.0, abs(one[name])), msg=name)

    def test_a_run_in_pytorch_is_that_on_the_native_engine_up_to_rounding(self):
        kinds = {
            "plain": [],
            "critic": PPO,
            # Log-probabilities that differ in their last bits give a divergence of 1e-8; exactly there is
            # none.
            "reference": [
                "objective.kl.in=reward", "objective.kl.coefficient=0.01", "filter.metric=seq_final_reward",
                "filter.tolerance=1e-4",
            ],
            "streaming": ["schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=1"],
        }
        for kind, arguments in kinds.items():
            with self.subTest(kind):
                # One of them as a user has it: with the program that is part of `tamis`.
                said = self.torch(f"torch_{kind}", *arguments, python=sys.executable if kind == "plain" else None)
                self.assertIn("torch", said)
                self.native(f"native_{kind}", *arguments)
                self.assert_alike(f"torch_{kind}", f"native_{kind}")
                first = [self.folder / "runs" / f"{name}_{kind}/rollouts/step_1.parquet" for name in ("torch", "native")]
                self.assertTrue(all(path.exists() for path in first))

    def kill(self, name, *arguments, seconds=0.0):
        """Begins a run, and kills it so many seconds after the checkpoint of its second step."""
        run = subprocess.Popen(
            self.command("config.yaml", f"run.name={name}", *self.learner(), *arguments), cwd=self.folder,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        until = time.monotonic() + 200
        while not (self.folder / "runs" / name / "checkpoints/step_2").exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(seconds)
        run.send_signal(signal.SIGKILL)
        run.wait()

    def timeless(self, name):
        """The rows without the clock."""
        return [
            {k: v for k, v in row.items() if not k.startswith(("timing", "perf/")) and "time" not in k} for row in self.rows(name)
        ]

    def test_a_loss_and_an_advantage_in_python_train_as_the_built_in_ones(self):
        """Those of `examples`, with arrays and with tensors, on both learners."""
        built_in = ["objective.loss={kind: clip, dual_clip: null}", "objective.advantage={kind: grpo, scale: none}"]
        python = f"run.python={warm.interpreter()}"
        advantage = f"objective.advantage={{kind: python, path: {support.ROOT / 'examples/own_loss.py'}}}"
        for learner in (self.native, self.torch):
            name = learner.__name__
            learner(f"{name}_built_in", *built_in)
            for file in ("own_loss", "own_loss_torch"):
                with self.subTest(learner=name, file=file):
                    loss = f"objective.loss={{kind: python, path: {support.ROOT / 'examples' / file}.py}}"
                    learner(f"{name}_{file}", python, loss, advantage)
                    self.assert_alike(f"{name}_{file}", f"{name}_built_in", tolerance=1e-6, num_rows=5)

    def test_a_check_shows_that_a_loss_in_pytorch_has_constant_parts(self):
        (self.folder / "my.py").write_text(
            "import torch\n\ndef loss(columns):\n"
            "    weight = torch.exp(columns.logprobs - columns.old_logprobs).detach()\n"
            "    return -columns.advantages * weight * columns.logprobs\n"
        )
        arguments = [f"run.python={warm.interpreter()}", "objective.loss={kind: python, path: my.py}"]
        command = [str(PROGRAM), "config", "check", "config.yaml", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("objective.loss: `loss` (my.py:3) has constant parts: for ", done.stderr)

    def test_a_run_that_is_killed_and_resumed_is_the_run_that_was_not(self):
        for kind, arguments in (("plain", []), ("critic", PPO)):
            with self.subTest(kind):
                whole, killed = f"whole_{kind}", f"killed_{kind}"
                self.torch(whole, *arguments)
                # PyTorch on a CPU gives the same bits for the same calls.
                self.kill(killed, *arguments)
                # One of them in an interpreter that shares nothing with that of the whole run.
                python = [f"learner.python={sys.executable}"] if kind == "plain" else []
                self.train("--resume", f"runs/{killed}", *python)
                for network in ("", "critic/") if arguments else ("",):
                    self.assertEqual(self.weights(killed, network=network), self.weights(whole, network=network))
                self.assertEqual(self.timeless(killed), self.timeless(whole))

    def test_a_learner_that_samples_samples_what_the_native_engine_does(self):
        samples = ["rollout.backend=learner"]
        kinds = {
            "cut": [
                "rollout.top_k=9", "rollout.top_p=0.9", "rollout.min_p=0.02", "rollout.temperature=0.8",
                "rollout.repetition_penalty=1.2", "rollout.max_num_seqs=7",
            ],
            "critic": [*PPO, "validate.temperature=0.5", "validate.n=2"],
            "stop": ["rollout.stop=['1']", "schedule.mode=streaming"],
        }  # fmt: skip
        for kind, arguments in kinds.items():
            with self.subTest(kind):
                self.torch(f"torch_{kind}", *samples, *arguments)
                self.assertFalse((self.folder / f"runs/torch_{kind}/published").exists())
                self.native(f"native_{kind}", *arguments)
                self.assert_alike(f"torch_{kind}", f"native_{kind}")
                names = [name for name in self.rows(f"native_{kind}")[0] if name.startswith("val")]
                self.assertTrue(names)
                for one, other in zip(self.rows(f"torch_{kind}")[:3], self.rows(f"native_{kind}")[:3], strict=True):
                    self.assertEqual([one.get(name) for name in names], [other.get(name) for name in names])
        found = {}
        for backend in ("native", "learner"):
            evaluated = subprocess.run(
                [str(PROGRAM), "eval", "runs/torch_cut", f"rollout.backend={backend}", "--json"],
                cwd=self.folder, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            self.assertEqual(evaluated.returncode, 0, evaluated.stderr[-3000:])
            found[backend] = json.loads(evaluated.stdout)
        self.assertEqual(found["learner"]["metrics"], found["native"]["metrics"])
        self.assertEqual(found["learner"]["samples"], found["native"]["samples"])

    def test_exact_runs_have_no_divergence_in_a_first_update_and_are_resumed_to_the_bit(self):
        # One update a step.
        exact = ["rollout.backend=learner", "learner.exact=true", "train.ppo_mini_batch_size=4"]
        said = self.torch("exact", *exact)
        self.assertEqual(re.findall(r"step (\d)/4 .* ppo_kl 0  ", said), list("1234"), said)
        rows = [row for row in self.rows("exact") if row["step"]]
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
        for row in rows:
            self.assertEqual((row["actor/ppo_kl"], row["actor/ppo_kl_k3"]), (0.0, 0.0))
        # Without it they differ, so that this can fail.
        self.torch("ordinary", *exact, "learner.exact=false")
        apart = [abs(row["actor/ppo_kl"]) for row in self.rows("ordinary") if row["step"]]
        self.assertGreater(max(apart), 0.0)
        self.kill("killed", *exact)
        self.train("--resume", "runs/killed")
        self.assertEqual(self.weights("killed"), self.weights("exact"))
        self.assertEqual(self.timeless("killed"), self.timeless("exact"))

    @support.with_continuous_batching
    def test_continuous_batching_samples_what_rows_do(self):
        samples = ["rollout.backend=learner", "rollout.max_num_seqs=7", "rollout.temperature=0.8", "rollout.top_k=9"]
        self.torch("rows", *samples)
        self.torch("continuous", *samples, "learner.continuous_batching=true")
        self.assertIn("continuous batching", (self.folder / "runs/continuous/learner.log").read_text())
        self.assert_alike("continuous", "rows")
        carries = ["schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=2", "schedule.rounds_in_flight=3"]
        self.torch("carries", *samples, *carries, "learner.continuous_batching=true")
        rows = self.rows("carries")
        self.assertEqual([row["step"] for row in rows], [0, 1, 2, 3, 4])
        self.assert_accounted(rows)

    def test_samples_in_flight_go_on_by_new_weights_and_say_which_drew_what(self):
        carries = [
            "rollout.backend=learner", "schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=2",
            "schedule.rounds_in_flight=3",
        ]  # fmt: skip
        self.torch("carries", *carries)
        rows = self.rows("carries")
        self.assertEqual([row["step"] for row in rows], [0, 1, 2, 3, 4])
        self.assertLessEqual(max(row.get("schedule/max_lag", 0) for row in rows), 2)
        self.assert_accounted(rows)
        places = ("groups/carried_out", "groups/in_flight_out")
        self.assertGreater(sum(row[place] for row in rows[1:] for place in places), 0, "nothing was carried")
        for number, seconds in enumerate((0.0, 0.3)):
            name = f"killed_{number}"
            self.kill(name, *carries, seconds=seconds)
            before = self.rows(name)
            self.assertGreaterEqual(len(before), 3)
            self.train("--resume", f"runs/{name}")
            rows = self.rows(name)
            self.assertEqual([row["step"] for row in rows], [0, 1, 2, 3, 4])
            self.assert_accounted(rows)
            # Everything that was trained on before the end is trained on again, with the same samples.
            for one, other in zip(before, rows, strict=False):
                self.assertEqual(*({key: row[key] for key in row if key.startswith(ACCOUNTS)} for row in (one, other)))
                for key in ("loss", "actor/grad_norm", "response_length/mean", "critic/score/mean"):
                    self.assertAlmostEqual(one.get(key, 0.0), other.get(key, 0.0), delta=1e-5, msg=f"{key} of {one['step']}")
        said = self.failed("publish.pause=wait", *carries)
        self.assertIn("`publish.pause: wait` does not work", said)

    def assert_accounted(self, rows):
        """Everything that was generated is in one place, step by step and over the run (docs/schedules.md)."""
        told = [row for row in rows if "trajectories/generated" in row]
        self.assertEqual([row["step"] for row in told], [1, 2, 3, 4])
        for unit in ("groups", "trajectories"):
            for before, row in zip([None, *told[:-1]], told, strict=True):
                count = {place: row.get(f"{unit}/{place}", 0) for place in (*SOURCES, *ENDS)}
                self.assertEqual(
                    sum(count[place] for place in SOURCES), sum(count[place] for place in ENDS), f"{unit} of step {row['step']}"
                )
                for place in ("carried", "in_flight"):
                    handed = 0 if before is None else before.get(f"{unit}/{place}_out", 0)
                    self.assertEqual(count[f"{place}_in"], handed, f"{unit}, {place} into step {row['step']}")
            self.assertEqual({row["groups/trained"] for row in told}, {4}, "the batch")
            self.assertEqual({row["trajectories/trained"] + row["trajectories/left_out"] for row in told}, {16})

    def failed(self, *arguments):
        done = subprocess.run(
            self.command("config.yaml", "learner.backend=torch", *arguments), cwd=self.folder, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_a_run_that_samples_in_its_learner_is_killed_and_resumed(self):
        samples = "rollout.backend=learner"
        self.torch("whole", samples)
        for place, seconds in enumerate((0.0, 0.1)):
            self.kill(f"killed_{place}", samples, seconds=seconds)
            self.train("--resume", f"runs/killed_{place}")
            counts = ("groups/generated", "tokens/generated", "tokens/trained", "response_length/mean", "critic/score/mean")
            for one, other in zip(self.rows(f"killed_{place}"), self.rows("whole"), strict=True):
                self.assertEqual([one.get(name) for name in counts], [other.get(name) for name in counts])
            self.assert_alike(f"killed_{place}", "whole", 1e-5)

    def test_a_run_goes_on_with_the_other_learner(self):
        for kind, arguments in (("plain", []), ("critic", PPO)):
            with self.subTest(kind):
                whole, first, second, third = (f"{name}_{kind}" for name in ("whole", "first", "second", "third"))
                self.native(whole, *arguments)
                self.torch(first, "train.total_steps=2", *arguments)
                shutil.copytree(self.folder / "runs" / first, self.folder / "runs" / second)
                self.train("--resume", f"runs/{first}", "train.total_steps=4", "learner.backend=native")
                self.train("--resume", f"runs/{second}", "train.total_steps=4")
                self.native(third, "train.total_steps=2", *arguments)
                self.train("--resume", f"runs/{third}", "train.total_steps=4", *self.learner())
                for name in (first, second, third):
                    self.assertEqual([row["step"] for row in self.rows(name)], [0, 1, 2, 3, 4])
                    self.assert_alike(name, whole, num_rows=5)

    def test_an_adapter_learns_and_its_reference_is_the_policy_without_it(self):
        self.native("whole", "train.total_steps=1", "checkpoint.save_freq=1")
        start = ["model.init=null", "model.path=runs/whole/checkpoints/step_1", "objective.kl.in=reward"]
        lora = ["learner.lora={rank: 4, alpha: 8}", "objective.kl.coefficient=0.01"]
        self.torch("adapter", *start, *lora)
        rows = self.rows("adapter")
        self.assertLess(abs(rows[1]["actor/reward_kl_penalty"]), 1e-7, "as yet the adapter adds nothing")
        self.assertGreater(abs(rows[-1]["actor/reward_kl_penalty"]), 1e-6)
        self.assertFalse((self.folder / "runs/adapter/reference").exists())
        self.assertTrue((self.folder / "runs/adapter/checkpoints/step_4/adapter/adapter_model.safetensors").exists())
        # A resume puts the adapter onto the policy that it was begun with.
        self.torch("resumed", *start, *lora, "train.total_steps=2")
        self.train("--resume", "runs/resumed", "train.total_steps=4")
        self.assertEqual(self.weights("resumed"), self.weights("adapter"))
        # Its saved moments mean nothing on another model.
        shutil.copytree(self.folder / "runs/whole/checkpoints/step_1", self.folder / "base")
        self.torch("moved", "model.init=null", "model.path=base", *lora, "train.total_steps=2")
        (self.folder / "base/checksums.json").unlink()
        weights = self.folder / "base/model.safetensors"
        *rest, last = weights.read_bytes()
        weights.write_bytes(bytes([*rest, last ^ 1]))
        self.refuses_to_resume("runs/moved", "is not the one that the run was started with: its files have changed")
        shutil.rmtree(self.folder / "base")
        self.refuses_to_resume("runs/moved", "base (model.path), is gone")
        # The weights for other programs include the adapter.
        self.native("further", "model.init=null", "model.path=runs/adapter/checkpoints/step_4", "train.total_steps=1")

    def refuses_to_resume(self, run, why):
        done = subprocess.run(
            self.command("--resume", run, "train.total_steps=4"), cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, 4, done.stderr[-3000:])
        self.assertIn(why, done.stderr)

    def test_a_critic_begins_with_the_layers_of_a_language_model_as_on_the_native_engine(self):
        self.native("other", "run.seed=4", "train.total_steps=1", "checkpoint.save_freq=1")
        folder = "runs/other/checkpoints/step_1"
        ppo = [*PPO, f"critic.model.path={folder}", "critic.optimizer.learning_rate=0.01"]
        self.torch("torch", *ppo)
        self.native("native", *ppo)
        self.assert_alike("torch", "native")
        tolerances = {"critic/values/mean": 1e-5, "critic/values/max": 1e-5, "critic/vf_loss": 1e-5, "critic/grad_norm": 1e-4}
        for one, other in zip(self.rows("torch")[1:], self.rows("native")[1:], strict=True):
            for name, tolerance in tolerances.items():
                self.assertAlmostEqual(one[name], other[name], delta=tolerance * max(1.0, abs(one[name])), msg=name)
        # The first values are those of a head of zeros; it learns.
        self.assertEqual([self.rows("torch")[1][f"critic/values/{name}"] for name in ("mean", "max")], [0.0, 0.0])
        self.assertGreater(abs(self.rows("torch")[-1]["critic/values/mean"]), 1e-3)

    def test_an_adapter_with_a_critic_is_resumed(self):
        self.native("whole", "train.total_steps=1", "checkpoint.save_freq=1", *PPO)
        begun = "runs/whole/checkpoints/step_1"
        start = ["model.init=null", f"model.path={begun}", f"critic.model.path={begun}/critic", *PPO]
        lora = ["learner.lora={rank: 4, alpha: 8}"]
        self.torch("adapter", *start, *lora)
        self.torch("resumed", *start, *lora, "train.total_steps=2")
        self.train("--resume", "runs/resumed", "train.total_steps=4")
        self.assertEqual(self.weights("resumed"), self.weights("adapter"))
        critics = [
            (self.folder / "runs" / name / "checkpoints/step_4/critic/model.safetensors").read_bytes()
            for name in ("resumed", "adapter")
        ]
        self.assertEqual(*critics)
        first = (self.folder / begun / "critic/model.safetensors").read_bytes()
        self.assertNotEqual(critics[0], first, "the critic learns beside the adapter")

    def test_a_number_format_that_is_not_the_samplers_has_ratios_of_its_own(self):
        once = ["train.ppo_mini_batch_size=4", "train.total_steps=1"]
        self.torch("bf16", "learner.dtype=bf16", *once)
        # One update a step: the policy that is trained is the one that is compared with.
        self.assertEqual(self.rows("bf16")[1]["actor/ratio_max"], 1.0)
        # A sampler gets the weights in the type of the passes.
        self.torch("f32", *once)
        for name, dtype in (("bf16", "bfloat16"), ("f32", "float32")):
            configs = list((self.folder / "runs" / name / "published").glob("version_*/config.json"))
            self.assertTrue(configs)
            self.assertEqual({json.loads(path.read_text())["dtype"] for path in configs}, {dtype})

    def test_what_is_wrong_with_the_learner_is_told(self):
        def failed(*arguments):
            done = subprocess.run(
                self.command("config.yaml", "learner.backend=torch", *arguments),
                cwd=self.folder, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            return done.returncode, done.stderr

        code, said = failed("learner.python=no-such-python")
        self.assertEqual(code, 3, said)
        self.assertIn("learner.python names the interpreter", said)
        # An interpreter without PyTorch.
        bare = self.folder / "bare"
        bare.write_text(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
        bare.chmod(0o755)
        code, said = failed(f"learner.python={bare}")
        self.assertEqual(code, 3, said)
        self.assertIn("torch", said)
        code, said = failed(f"learner.python={sys.executable}", "learner.device=cuda:77")
        self.assertEqual(code, 1, said)
        self.assertIn("this machine has no device", said)


if __name__ == "__main__":
    unittest.main()
