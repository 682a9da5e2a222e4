"""`tamis train train_grpo.py` with TRL itself: its parser, configuration, data sets and adapters, and a stand-in for its trainer."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import toy
from datasets import Dataset, DatasetDict

PROGRAM = os.environ.get("TAMIS_PROGRAM")

SUMS = '''
from dataclasses import dataclass, field

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
from trl.rewards import think_format_reward


@dataclass
class SumArguments(ScriptArguments):
    bonus: float = field(default=0.5, metadata={"help": "what a short answer is worth"})


def main(script_args, training_args, model_args):
    training_args.model_init_kwargs = dict(revision=model_args.model_revision, dtype=model_args.dtype)
    dataset = load_dataset(script_args.dataset_name).map(lambda row: {"prompt": [{"role": "user", "content": row["problem"]}]}, remove_columns=["problem"])
    seen = []

    def digits(completions, solution, log_metric, **kwargs):
        seen.append(len(completions))
        log_metric("calls", len(seen))
        texts = [messages[0]["content"] for messages in completions]
        return [sum(letter == gold for letter in text) for text, gold in zip(texts, solution)]

    async def brief(completions, completion_ids, **kwargs):
        return [script_args.bonus / len(ids) for ids in completion_ids]

    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        reward_funcs=[digits, brief, think_format_reward],
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        peft_config=get_peft_config(model_args),
    )
    result = trainer.train()
    print("step", result.global_step, "calls", len(seen), "devices", "_n_gpu" in vars(training_args))
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    parser = TrlParser((SumArguments, GRPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
'''

ARGUMENTS = (
    "--model_name_or_path tiny --dataset_name my-lab/sums --output_dir out/sums --num_generations 4 --max_completion_length 4 "
    "--max_steps 2 --bonus 0.25 --eval_strategy steps --eval_steps 1 --learning_rate 1e-4 --beta 0.04 --report_to none"
).split()


@unittest.skipIf(PROGRAM is None, "SKIPPED: there is no program `tamis` (TAMIS_PROGRAM)")
class ScriptTests(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        toy.model().save_pretrained(self.folder / "tiny")
        toy.tokenizer(chat=True).save_pretrained(self.folder / "tiny")
        rows = [{"problem": f"q{row:03d}:", "solution": str(row % 10)} for row in range(16)]
        for split, part in DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:4])).items():
            (self.folder / "my-lab/sums").mkdir(parents=True, exist_ok=True)
            part.to_json(self.folder / f"my-lab/sums/{split}.jsonl")

    def tamis(self, script, *arguments):
        (self.folder / "train.py").write_text(script)
        # As if an environment was active.
        folder = Path(sys.executable).parent
        active = {"VIRTUAL_ENV": str(folder.parent), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        command = [PROGRAM, "train", "train.py", "data.max_prompt_length=8", *arguments]
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **active}, capture_output=True, text=True, check=False)

    def test_parser_of_trl(self):
        ended = self.tamis(SUMS, *ARGUMENTS)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, r"step 2 calls [1-9]\d* devices False")
        rows = [json.loads(line) for line in (self.folder / "out/sums/metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if "rewards/digits/mean" in row]
        self.assertEqual(len(steps), 2)
        self.assertEqual(steps[0]["rewards/think_format_reward/mean"], 0)
        self.assertGreater(steps[0]["rewards/brief/mean"], 0)
        self.assertTrue((self.folder / "out/sums/model.safetensors").is_file())
        # Only differences from TRL's defaults are passed on.
        given = (self.folder / "out/sums.script/grpo.yaml").read_text()
        self.assertIn("\nbeta: 0.04\n", given)
        self.assertNotIn("num_iterations", given)

    def test_objects(self):
        script = """
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

tokenizer = AutoTokenizer.from_pretrained("tiny")
tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained("tiny"),
    processing_class=tokenizer,
    reward_funcs=lambda completions, **kwargs: [1.0] * len(completions),
    args=GRPOConfig("out/objects", max_steps=1, max_completion_length=4),
    train_dataset=[{"prompt": [{"role": "user", "content": "q"}]}],
    peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], PATTERN),
).train()
"""
        ended = self.tamis(script.replace(", PATTERN", ""), "--dry-run")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("the model is read from tiny anew", ended.stderr)
        self.assertIn("lora: {rank: 2, alpha: 4, targets: [q_proj]}", ended.stdout)
        self.assertIn("chat_template: ", ended.stdout)
        self.assertIn("name: lambda, kind: command", ended.stdout)
        shutil.copytree(self.folder / "tiny", self.folder / "other")
        ended = self.tamis(script.replace("PATTERN", "rank_pattern={'q_proj': 3}, use_dora=True").replace('"tiny")\nt', '"other")\nt'))
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("LoraConfig.rank_pattern has no counterpart", ended.stderr)
        self.assertIn("processing_class=...) is that of other", ended.stderr)


if __name__ == "__main__":
    unittest.main()
