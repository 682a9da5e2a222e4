"""What is trained here: a Llama of one layer over characters, on prompts that name their row.

A prompt is `q007:`, and its row wants a digit somewhere in the answer. So from any answer, wherever it turns
up, a test finds the row that it belongs to and whether it is right.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import string
import tempfile
import unittest
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets  # noqa: E402
import torch
import transformers
import trl
import trl.chat_template_utils
from datasets import Dataset
from packaging.version import Version
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

import tamis.trl

TRL = Version(trl.__version__)
CHARACTERS = list("0123456789+= ?abcdefghijklmnopqrstuvwxyz:")
KEEP_ALL = {"kind": "mean_range", "low": -1e6, "high": 1e6}
"""A filter that drops nothing."""
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()
for _name in ("tamis.trl", "trl", "accelerate"):
    logging.getLogger(_name).setLevel(logging.ERROR)
datasets.disable_progress_bars()


def tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    made = _tokenizer(["<pad>", "<eos>", "<unk>", *CHARACTERS], "<eos>")
    if chat:
        made.chat_template = CHAT
    return made


def tool_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of all characters, with a chat template of TRL's own package that knows tools."""
    tokens = ["<pad>", "<|im_end|>", "<unk>", "<|im_start|>", "\n", *string.printable[:95]]
    is_old = not hasattr(trl.chat_template_utils, "qwen3_template")
    made = _tokenizer(tokens, "<|im_end|>", _Parsing if is_old else PreTrainedTokenizerFast)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = trl.chat_template_utils.qwen3_chat_template
    return made


class _Parsing(PreTrainedTokenizerFast):
    """For TRL before 1.9, which knows how older transformers parsed a call of a tool out of a text."""

    def parse_response(self, ids: Any, *_: Any, **__: Any) -> dict[str, Any]:
        text = self.decode(ids).removesuffix("<|im_end|>")
        if (call := re.match(r"<tool_call>(.*)</tool_call>", text, re.DOTALL)) is None:
            return {"role": "assistant", "content": text}
        calls = [{"type": "function", "function": json.loads(call[1])}]
        return {"role": "assistant", "content": "", "tool_calls": calls}


def _tokenizer(tokens: list[str], end: str, kind: Any = PreTrainedTokenizerFast) -> Any:
    characters = Tokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    return kind(tokenizer_object=characters, pad_token="<pad>", eos_token=end, unk_token="<unk>", padding_side="left")


_SAVED = tempfile.TemporaryDirectory()


def model(vocab_size: int = len(CHARACTERS) + 3) -> LlamaForCausalLM:
    """From a folder, because TRL loads a reference model from there once more."""
    folder = Path(_SAVED.name, str(vocab_size))
    if not folder.exists():
        _new_model(vocab_size).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder)


def _new_model(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=2048,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=1,
        )
    )


def data(num_rows: int = 64, chat: bool = False) -> Dataset:
    draw = random.Random(0)
    rows = []
    for row in range(num_rows):
        prompt: Any = f"q{row:03d}:"
        if chat:
            prompt = [{"role": "user", "content": prompt}]
        rows.append({"prompt": prompt, "want": draw.choice("0123456789"), "row": row})
    return Dataset.from_list(rows)


def row_of(prompt: Any) -> int:
    """The row that a prompt names."""
    (row,) = re.findall(r"q(\d{3}):", prompt_text(prompt))
    return int(row)


def prompt_text(prompt: Any) -> str:
    """The content of a text, or of messages: tables of TRL before 1.16 have chats as text."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if isinstance(text, str):
        return text
    return "".join(part.get("text") or "" for part in text)


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)


class Judge:
    """A reward function: 1 if the answer has the digit. Records its inputs, and fails if prompt and row differ."""

    def __init__(self) -> None:
        self.__name__ = "digit"
        self.asked: list[tuple[int, str]] = []
        self.calls = 0

    def __call__(self, prompts: Any, completions: Any, want: Any, row: Any, **_: Any) -> list[float]:
        self.calls += 1
        for prompt, own in zip(prompts, row, strict=True):
            assert row_of(prompt) == own, (prompt, own)
        texts = [text_of(completion) for completion in completions]
        self.asked += list(zip(row, texts, strict=True))
        return [float(digit in text) for digit, text in zip(want, texts, strict=True)]

    @property
    def rows(self) -> list[int]:
        """The row of each group, in the order in which they were judged."""
        return [row for row, _ in self.asked][::4]


def digit(completions: Any, want: Any, **_: Any) -> list[float]:
    return [float(wanted in text_of(completion)) for wanted, completion in zip(want, completions, strict=True)]


def noise(completions: Any, **_: Any) -> list[float]:
    """Differs from member to member."""
    return [len(text_of(text)) + sum(map(ord, text_of(text))) / 7919 for text in completions]


def alike(completions: Any, **_: Any) -> list[float]:
    return [1.0] * len(completions)


SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 3,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "learning_rate": 1e-3,
    "disable_tqdm": True,
    "beta": 0.0,
}
"""Four groups of four a step."""
ARGUMENTS = (
    "environment_factory",
    "eval_dataset",
    "model",
    "peft_config",
    "processing_class",
    "reward_processing_classes",
    "rollout_func",
    "tools",
    "train_dataset",
)
"""What goes to a trainer itself, and not into its configuration."""


class Killed(Exception):
    """A run ends here."""


class Killing(TrainerCallback):
    """Ends a run before the step after so many."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            raise Killed


class Case(unittest.TestCase):
    """Makes trainers, in a folder that goes with the test."""

    maxDiff = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def reasons(self, trainer: Any, *arguments: Any, **keywords: Any) -> list[str]:
        """The reason why `attach` refuses a trainer, which stays unchanged."""
        before = type(trainer)
        with self.assertRaises(tamis.trl.AttachError) as raised:
            tamis.trl.attach(trainer, *arguments, **keywords)
        self.assertIs(type(trainer), before)
        self.assertFalse(hasattr(trainer, "sieve"))
        return str(raised.exception).splitlines()

    def needs(self, oldest: str, what: str) -> None:
        if Version(oldest) > TRL:
            self.skipTest(f"TRL {TRL} has no {what}")

    def trainer(self, cls: Any = None, rewards: Any = None, rows: Any = None, out: str = "out", **settings: Any) -> Any:
        cls = cls or trl.GRPOTrainer
        more = {name: settings.pop(name) for name in ARGUMENTS if name in settings}
        is_rloo = issubclass(cls, trl.RLOOTrainer)
        config = settings.pop("config", trl.RLOOConfig if is_rloo else trl.GRPOConfig)
        rows = data() if rows is None else rows
        chat = not isinstance(rows[0]["prompt"], str)
        args = {
            "model": model(),
            "reward_funcs": digit if rewards is None else rewards,
            "args": config(str(self.folder / out), **(SETTINGS | settings)),
            "train_dataset": rows,
            "processing_class": tokenizer(chat),
        }
        made = cls(**(args | more))
        # Printing is of no interest.
        for name in ("PrinterCallback", "ProgressCallback"):
            for callback in list(made.callback_handler.callbacks):
                if type(callback).__name__ == name:
                    made.remove_callback(callback)
        return made

    def sieved(self, filter: Any = "variance", sieve: Any = None, **keywords: Any) -> Any:
        return tamis.trl.attach(self.trainer(**keywords), filter, **(sieve or {}))

    def fit(self, trainer: Any, **keywords: Any) -> Any:
        torch.manual_seed(0)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train(**keywords)
        return trainer

    def assert_same_training(self, one: Any, other: Any) -> None:
        """Losses, gradient norms and weights, to the bit."""
        self.assertEqual(course(one), course(other))
        self.assertGreater(len(course(one)), 1)
        for (name, ours), theirs in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
            self.assertTrue(torch.equal(ours, theirs), name)

    def assert_adds_up(self, trainer: Any) -> None:
        totals = {name: counts["groups"] for name, counts in trainer.sieve.totals.items()}
        generated = totals.pop("generated")
        self.assertGreater(generated, 0)
        for name in ("duplicated", "replayed"):
            totals.pop(name, None)
        parts = [totals.pop(name) for name in list(totals) if name.startswith("dropped/")]
        if parts:
            self.assertEqual(totals["dropped"], sum(parts))
        self.assertEqual(generated, sum(totals.values()), totals)


def course(trainer: Any) -> list[tuple[Any, ...]]:
    """Loss and gradient norm of each step."""
    return [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]


def seeing(cls: Any = None) -> Any:
    """A class of trainer that records every micro-batch in its loss: `seen` has (row, answer, advantage)."""
    base = cls or trl.GRPOTrainer

    class Seeing(base):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if self.model.training:
                self.seen = getattr(self, "seen", [])
                texts = self.processing_class.batch_decode(inputs["prompt_ids"], skip_special_tokens=True)
                masked = inputs["completion_ids"] * inputs["completion_mask"]
                answers = self.processing_class.batch_decode(masked, skip_special_tokens=True)
                rows = [int(text.removeprefix("q")[:3]) for text in texts]
                self.seen.append(list(zip(rows, answers, inputs["advantages"].tolist(), strict=True)))
            return super()._compute_loss(model, inputs)

    Seeing.__name__ = base.__name__
    return Seeing
