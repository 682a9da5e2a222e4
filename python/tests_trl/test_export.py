"""`tamis config export --as trl` with TRL itself: its GRPOConfig takes the settings, and what it holds imports as the configuration."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ.get("TAMIS_PROGRAM")

# Runs a script with TRL's own configuration on the CPU, and prints what a trainer is given.
RUNNER = """
import json, runpy, sys
import datasets, trl

class Config(trl.GRPOConfig):
    def __init__(self, **given):
        super().__init__(use_cpu=True, bf16=False, **given)
        self.given = given

class Trainer:
    def __init__(self, args, reward_funcs, **given):
        names = [getattr(function, "__name__", function) for function in reward_funcs]
        print(json.dumps({**args.given, "names": names, "adapter": given.get("peft_config") and given["peft_config"].to_dict()["r"], "model": given["model"],
                          "data": given["train_dataset"], "held_out": given.get("eval_dataset"), "generated": args.generation_batch_size}))

    def train(self):
        print("trained")

trl.GRPOConfig, trl.GRPOTrainer = Config, Trainer
datasets.load_dataset = lambda *names, **options: [list(names), options]
datasets.concatenate_datasets = lambda parts: parts
sys.path.insert(0, ".")
runpy.run_path(sys.argv[1])
"""

BASE = """
model: {path: some/model}
data: {train: [a.jsonl, "some/sums:main/train"], val: v.jsonl, train_batch_size: 32}
reward: [{kind: math_verify}, {kind: python, path: mine.py, function: shorter, style: trl, weight: 0.5}]
rollout: {n: 16, max_response_length: 1024, temperature: 0.8}
train: {ppo_mini_batch_size: 16, total_steps: 100, optimizer: {learning_rate: 2.0e-6}}
"""


@unittest.skipUnless(PROGRAM, "there is no program `tamis`")
class ExportTests(unittest.TestCase):
    def exported(self, *overrides):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        home = Path(folder.name)
        (home / "mine.yaml").write_text(BASE)
        (home / "mine.py").write_text("def shorter(completions, **columns):\n    return [0.0 for _ in completions]\n")
        (home / "runner.py").write_text(RUNNER)
        words = [PROGRAM, "config", "export", "--as", "trl", "mine.yaml", *overrides]
        done = subprocess.run(words, cwd=home, capture_output=True, text=True, check=True)
        (home / "train_grpo.py").write_text(done.stdout)
        ran = subprocess.run([sys.executable, "runner.py", "train_grpo.py"], cwd=home, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, f"{ran.stderr}\n{done.stdout}")
        given, trained = ran.stdout.splitlines()[-2:]
        self.assertEqual(trained, "trained")
        return json.loads(given), done.stdout

    def test_a_recipe(self):
        given, script = self.exported()
        self.assertEqual(given["num_generations"], 16)
        # 16 prompts an update, 32 of them generated at a time.
        self.assertEqual(given["generated"], 32 * 16)
        self.assertEqual(given.get("per_device_train_batch_size", 8) * given["gradient_accumulation_steps"], 16 * 16)
        self.assertEqual((given["learning_rate"], given["max_completion_length"], given["temperature"]), (2e-6, 1024, 0.8))
        # A step of tamis has two updates.
        self.assertEqual(given["max_steps"], 200)
        self.assertEqual((given["names"], given["model"]), (["accuracy_reward", "shorter"], "some/model"))
        self.assertEqual(given["reward_weights"], [1.0, 0.5])
        file, named = given["data"]
        self.assertEqual(file, [["json"], {"data_files": "a.jsonl", "split": "train"}])
        self.assertEqual(named, [["some/sums"], {"name": "main", "split": "train"}])
        self.assertNotIn("filter", script)

    def test_losses_and_what_is_lost(self):
        given, script = self.exported(
            "objective.loss={kind: cispo, bound: absolute, max_ratio: 5}", "objective.aggregation=token-mean", "filter={kind: variance}"
        )
        self.assertEqual((given["loss_type"], given["epsilon_high"]), ("cispo", 5.0))
        self.assertIn("#   filter: {kind: variance", script)
        self.assertIn("tamis.trl.attach(trainer, filter=...)", script)

    def test_validation_rewards_and_loggers(self):
        given, script = self.exported(
            "preset=dapo", "validate.test_freq=6", "validate.n=3", "run.loggers=[jsonl, console, tensorboard]", "reward[0].kind=gsm8k"
        )
        # TRL itself checks the sizes of both batches, and the names of loggers.
        self.assertEqual((given["eval_strategy"], given["eval_steps"], given["num_generations_eval"]), ("steps", 12, 3))
        self.assertEqual(given["per_device_eval_batch_size"], 3)
        self.assertEqual(given["held_out"], [[["json"], {"data_files": "v.jsonl", "split": "train"}]])
        self.assertEqual(given["report_to"], ["tensorboard"])
        self.assertEqual(given["names"], ["gsm8k", "shorter", "soft_overlong_punishment_reward"])
        self.assertEqual(given["reward_weights"], [1.0, 0.5, 1.0])
        self.assertIn("get_soft_overlong_punishment(max_completion_len=1024, soft_punish_cache=204)", script)
        self.assertRegex(script, r"#   reward\[0\]: \{.*kind: gsm8k")
        self.assertNotIn("#   preset", script)

    def test_an_adapter(self):
        given, _ = self.exported("learner={backend: torch, lora: {rank: 4, alpha: 8, targets: [q_proj, v_proj]}}")
        self.assertEqual(given["adapter"], 4)
        given, script = self.exported("learner={backend: torch, lora: {rank: 4, alpha: 8}}", "rollout={backend: vllm, launch: {}}")
        self.assertEqual(given["adapter"], 4)
        self.assertIn('target_modules="all-linear"', script)
        self.assertEqual(given.get("per_device_train_batch_size", 8) * given["gradient_accumulation_steps"], 16 * 16)


if __name__ == "__main__":
    unittest.main()
