"""Shared by the tests of the torch learner: the package on the path, golden data, tiny models, waves."""

import gzip
import json
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
# Nothing is looked up on a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"\nSKIPPED: {missing.name} is not installed; scripts/install-torch makes .venv-torch\n", file=sys.stderr)
    raise unittest.SkipTest(f"{missing.name} is not installed") from None

from tamis.learner.generate import CONTINUOUS_RELEASE

with_continuous_batching = unittest.skipUnless(
    transformers.__version__.startswith(CONTINUOUS_RELEASE), f"transformers is {transformers.__version__}"
)
torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

GOLDEN = pathlib.Path(os.environ.get("TAMIS_GOLDEN", ROOT / "tests/golden"))
# `scripts/gpu-check` runs tests on the GPU.
DEVICE = os.environ.get("TAMIS_TEST_DEVICE", "cpu")
ARCHITECTURES = ("llama", "qwen2", "qwen3")
OPTIMIZER = {
    "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01, "decay_norms_and_biases": True,
    "max_grad_norm": 1.0,
}  # fmt: skip


def golden_folder(architecture):
    """A tiny checkpoint of tests/golden."""
    return GOLDEN / "hf" / architecture


def golden(architecture):
    """The numbers that transformers computed with it."""
    plain = golden_folder(architecture) / "expected.json"
    if plain.exists():
        return json.loads(plain.read_text())
    with gzip.open(f"{plain}.gz", "rt") as file:
        return json.load(file)


def columns(prompts, sequences, ranks=None):
    """A wave's columns: prompts as lists of tokens, sequences as `(prompt's number, completion)`."""

    def offsets(lists):
        return torch.tensor([0, *map(len, lists)]).cumsum(0)

    def flat(lists):
        return torch.tensor([token for tokens in lists for token in tokens], dtype=torch.int32)

    completions = [completion for _, completion in sequences]
    return {
        "prompt_token": flat(prompts),
        "prompt_offset": offsets(prompts),
        "prompt_of": torch.tensor([prompt for prompt, _ in sequences], dtype=torch.int32),
        "completion_token": flat(completions),
        "completion_offset": offsets(completions),
        "rank": torch.tensor(ranks or [0] * len(sequences), dtype=torch.int32),
    }


def next_token_columns(sequences):
    """The wave in which every token but the first is a completion's."""
    return columns([tokens[:1] for tokens in sequences], [(i, tokens[1:]) for i, tokens in enumerate(sequences)])


def random_columns(vocab_size, seed=0, shape=((5, (7, 1, 12)), (1, (4,)), (9, (3, 20)))):
    """A made-up wave; `shape` has a prompt's length and those of its completions."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length):
        return torch.randint(vocab_size, (length,), generator=generator).tolist()

    prompts = [draw(length) for length, _ in shape]
    return columns(prompts, [(i, draw(length)) for i, (_, lengths) in enumerate(shape) for length in lengths])


def open_settings(folder, **more):
    """Settings of `open`."""
    values = {"policy": str(folder), "temperature": 1.0, "optimizer": OPTIMIZER, **more}
    values["options"] = {"device": DEVICE, "dtype": "f32", "threads": 1, **values.get("options", {})}
    return values


def opened(folder, **more):
    """A learner that holds this policy."""
    from tamis.learner.learner import Learner

    learner = Learner()
    call(learner, "open", open_settings(folder, **more))
    return learner


def call(learner, name, settings=None, given=None):
    """One call, as the server makes it: `(settings, columns)` of the answer."""
    from tamis.learner.protocol import Settings

    answer, found = learner.calls[f"/v1/{name}"](Settings(settings or {}), dict(given or {}))
    # On a GPU answers stay there until they are written.
    return answer, {name: one.cpu() for name, one in found.items()}


def randomise(module, seed=0, deviation=0.2):
    """Weights that differ so much that nothing passes by chance: norms about one, all others about zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * deviation
            is_norm = parameter.dim() == 1 and "norm" in name and "bias" not in name
            parameter.copy_(1 + noise if is_norm else noise)
    return module


def save_tiny(folder, config, seed=0, kind=transformers.AutoModelForCausalLM):
    """A model of this configuration with random weights, saved by transformers."""
    module = randomise(kind.from_config(config), seed)
    module.save_pretrained(folder)
    return module.eval()


def tiny_config(kind, **more):
    """A configuration of transformers with sizes that fit a test."""
    sizes = {
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    return getattr(transformers, kind)(**{**sizes, **more})


class Case(unittest.TestCase):
    """Comparisons of tensors."""

    def assert_close(self, found, expected, tolerance, what=""):
        """Every number within `tolerance` of the largest expected one."""
        found, expected = (torch.as_tensor(values).detach().cpu().double() for values in (found, expected))
        self.assertEqual(found.shape, expected.shape, what)
        if expected.numel():
            largest = expected.abs().max().clamp_min(1e-30)
            worst = ((found - expected).abs().max() / largest).item()
            self.assertLessEqual(worst, tolerance, f"{what}: off by {worst:.2e} of the largest")

    def assert_same(self, found, expected, what=""):
        """The same bits."""
        found, expected = found.cpu(), expected.cpu()
        self.assertTrue(torch.equal(found, expected), f"{what}: {(found - expected).abs().max()}")

    def assert_refused(self, error, pattern, function, *arguments, **more):
        """An error of the wire whose message holds the pattern."""
        with self.assertRaisesRegex(error, pattern):
            function(*arguments, **more)
