"""Runs of `tamis train` whose reward is a model in PyTorch.

They need the program: `cargo build -p tamis-cli`, or its path in TAMIS_PROGRAM. Without it they are left out.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import support
import warm
import transformers
from test_reward import direct
from tokenizers import Tokenizer, models, pre_tokenizers

PROGRAM = pathlib.Path(os.environ.get("TAMIS_PROGRAM", support.ROOT / "target/debug/tamis"))
CONFIG = """
run: {{seed: 3, threads: 1}}
model:
  init: {{architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 64}}
data:
  task: arithmetic
  arithmetic: {{levels: [{{digits: 1, operators: ['+'], terms: 2}}], train_size: 64, val_size: 8}}
  max_prompt_length: 12
  train_batch_size: 4
sft: {{steps: 0}}
rollout: {{n: 4, max_response_length: 4, save: all}}
reward:
  - {{kind: model, name: rm, path: rm, device: cpu, batch_size: 1, python: {python}, pass_score: 0.0}}
  - {{kind: number, weight: 0}}
train:
  ppo_mini_batch_size: 4
  total_steps: 4
  optimizer: {{learning_rate: 1e-3}}
validate: {{test_freq: 2, before_train: true, save_samples: true}}
checkpoint: {{save_freq: 2}}
"""

# Runs `-m MODULE ARGUMENTS` as the interpreter does.
ENDED = """
import os, pathlib, runpy, signal, sys
import torch
from tamis.reward.scoring import RewardModel

score, calls = RewardModel.score, []

def score_or_end(self, texts):
    calls.append(texts)
    mark = pathlib.Path({mark!r})
    if len(calls) == {at_call} and not mark.exists():
        mark.touch()
        {how}
    return score(self, texts)

RewardModel.score = score_or_end
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def save_reward_model(folder, **more):
    """A reward model of characters."""
    characters = "0123456789+-*=? \n"
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, **{c: i for i, c in enumerate(characters, 2)}}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = support.tiny_config("Qwen3Config", num_labels=1, **more)
    support.save_tiny(folder, config, kind=transformers.AutoModelForSequenceClassification)


@unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
class RewardRunTest(support.Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "config.yaml").write_text(CONFIG.format(python=warm.interpreter()))
        save_reward_model(self.folder / "rm")

    def run_program(self, *arguments, code=0):
        done = subprocess.run(
            [str(PROGRAM), *arguments], cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, code, done.stderr[-3000:])
        return done.stdout + done.stderr

    def train(self, name, *arguments, code=0):
        return self.run_program("train", "config.yaml", f"run.name={name}", *arguments, code=code)

    def rows(self, name):
        lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        timed = ("timing", "perf/")
        rows = [json.loads(line) for line in lines]
        return [{k: v for k, v in row.items() if not k.startswith(timed) and "time" not in k} for row in rows]

    def weights(self, name):
        return (self.folder / "runs" / name / "checkpoints/step_4/model.safetensors").read_bytes()

    def samples(self, name, step):
        """The samples of a validation: the text that the model read, and its score."""
        path = self.folder / "runs" / name / f"validation/step_{step}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def test_a_run_is_scored_by_the_model_and_a_killed_one_goes_on(self):
        said = self.train("whole")
        self.assertIn("starting a reward model", said)
        samples = self.samples("whole", 0) + self.samples("whole", 4)
        self.assertEqual(len(samples), 16)
        for one in samples:
            expected = direct(self.folder / "rm", one["prompt"] + one["completion"])[0].item()
            self.assertAlmostEqual(one["rm"], expected, delta=1e-5 * max(1, abs(expected)), msg=str(one))
            self.assertEqual(one["acc"], float(expected >= 0))
        # Killed after a checkpoint and resumed: with one text at a time, scores depend only on the text.
        run = subprocess.Popen(
            [str(PROGRAM), "train", "config.yaml", "run.name=killed"],
            cwd=self.folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 200
        while not (self.folder / "runs/killed/checkpoints/step_2").exists() and time.monotonic() < until:
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        run.wait()
        self.run_program("train", "--resume", "runs/killed")
        self.assertEqual(self.weights("killed"), self.weights("whole"))
        self.assertEqual(self.rows("killed"), self.rows("whole"))
        # And an evaluation calls the model, too.
        said = self.run_program("eval", "runs/whole")
        self.assertIn("rm", said)

    def test_a_process_that_is_killed_is_started_again_and_nothing_is_lost(self):
        self.train("whole")
        python = self.interpreter_that_ends_a_reward_model(at_call=3, how="os.kill(os.getpid(), signal.SIGKILL)")
        told = self.train("hurt", f"reward[0].python={python}")
        self.assertRegex(told, "the reward model `.*` ended .*signal: 9")
        self.assertIn("restart 1 of at most 10", told)
        self.assertEqual(self.weights("hurt"), self.weights("whole"))
        # A lost device ends it as well. Otherwise it would answer with errors for ever.
        (self.folder / "ended-once").unlink()
        # A real GPU would still answer.
        lost = "import tamis.learner.device; tamis.learner.device._computes = lambda: False; "
        lost += 'raise torch.AcceleratorError("CUDA error: device-side assert triggered")'
        python = self.interpreter_that_ends_a_reward_model(at_call=3, how=lost)
        told = self.train("lost", f"reward[0].python={python}")
        self.assertIn("error: the device cannot be computed on any more: CUDA error: device-side assert triggered", told)
        self.assertIn("restart 1 of at most 10", told)
        self.assertEqual(self.weights("lost"), self.weights("whole"))
        # If it is not started again, the run ends, to be resumed.
        (self.folder / "ended-once").unlink()
        told = self.train("ended", f"reward[0].python={python}", "reward[0].max_restarts=0", code=1)
        self.assertRegex(told, "reward function `rm` cannot continue")
        self.run_program("train", "--resume", "runs/ended")
        self.assertEqual(self.weights("ended"), self.weights("whole"))

    def interpreter_that_ends_a_reward_model(self, at_call, how):
        """An interpreter under which the first reward model to get so many calls ends in this way before it answers the last.

        The run has been opened by then: it asks for scores only after that.
        """
        program = self.folder / "ended.py"
        program.write_text(ENDED.format(at_call=at_call, how=how, mark=str(self.folder / "ended-once")))
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        python.chmod(0o755)
        return python

    def test_what_is_no_reward_model_is_told_before_anything_is_generated(self):
        support.save_tiny(self.folder / "language", support.tiny_config("Qwen3Config"))
        told = self.train("refused", "reward[0].path=language", code=2)
        self.assertRegex(told, "reward `rm`: .* it is a Qwen3ForCausalLM: tensor `score.weight` is missing")
        self.assertIn("hint: name a model with a head for sequence classification", told)
        told = self.train("refused", "reward[0].label=3", code=2)
        self.assertIn("1 label, and no label 3", told)
        told = self.train("refused", "reward[0].path=nothing", code=2)
        self.assertIn("there is no folder", told)
        told = self.train("refused", "reward[0].python=no-such-python", code=2)
        self.assertIn("no-such-python", told)
        bare = self.folder / "bare"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        told = self.train("refused", f"reward[0].python={bare}", code=2)
        self.assertIn("a reward model needs torch, which is not installed", told)

    def test_texts_that_are_too_long_are_cut_and_counted_or_cost_their_score(self):
        self.train("cut", "reward[0].max_length=3", "reward[0].overlong=left", "train.total_steps=1")
        self.assertEqual([row["reward_log/rm_truncated"] for row in self.rows("cut") if "reward_log/rm_truncated" in row], [1.0])
        told = self.train("unscored", "reward[0].max_length=2", "validate.before_train=false", code=1)
        self.assertRegex(told, "the text has \\d+ tokens, and at most 2 are read")

    def test_a_template_of_ones_own(self):
        self.train("template", "reward[0].template='{completion}={prompt}'", "train.total_steps=1")
        for one in self.samples("template", 0):
            expected = direct(self.folder / "rm", f"{one['completion']}={one['prompt']}")[0].item()
            self.assertAlmostEqual(one["rm"], expected, delta=1e-5 * max(1, abs(expected)))


if __name__ == "__main__":
    unittest.main()
