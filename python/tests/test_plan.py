"""The memory that a run plans for its learner, against what the learner's tensors take on a CPU."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import weakref

# First: it says so, and leaves the tests out, where PyTorch is missing.
from support import GOLDEN, Case, call, columns, opened, save_tiny, tiny_config

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PROGRAM = os.environ.get("TAMIS_PROGRAM")
SIZES = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip
PROMPT, RESPONSE = 64, 192

CONFIG = """
model: {{path: {folder}}}
data: {{task: arithmetic, train_batch_size: 8, max_prompt_length: 64}}
rollout: {{n: 4, max_response_length: 192, backend: vllm, servers: ['http://127.0.0.1:1']}}
reward: [{{kind: number}}]
train: {{total_steps: 1, micro_batch_tokens: 1536}}
learner: {{backend: torch, device: cpu}}
"""


class Live(TorchDispatchMode):
    """Bytes of all tensors that are made inside of it and are still there, and the most at once."""

    def __init__(self):
        super().__init__()
        self.bytes = self.most = 0
        self._known = weakref.WeakKeyDictionary()

    def _free(self, size):
        self.bytes -= size

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._known:
                    size = storage.nbytes()
                    self._known[storage] = size
                    weakref.finalize(storage, self._free, size)
                    self.bytes += size
                    self.most = max(self.most, self.bytes)
        return made


@unittest.skipUnless(PROGRAM, "TAMIS_PROGRAM names no program")
class Planned(Case):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def plan(self, *overrides):
        """Bytes of each part."""
        config = self.folder / "run.yaml"
        config.write_text(CONFIG.format(folder=self.folder / "model"))
        command = [PROGRAM, "config", "check", str(config), *overrides, "--plan", "--json"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(asked.returncode, 0, asked.stderr)
        memory = json.loads(asked.stdout)["learner"]["memory"]
        return {part["name"]: part["bytes"] for part in memory["certain"] + memory["of_batch"]}

    def measure(self, **options):
        """Bytes of what a learner holds, and the most that a pass over a micro-batch takes beside it."""
        generator = torch.Generator().manual_seed(1)

        def draw(length):
            return torch.randint(SIZES["vocab_size"], (length,), generator=generator).tolist()

        # As many tokens as a micro-batch has, in sequences at their longest.
        prompts = [draw(PROMPT) for _ in range(6)]
        wave = columns(prompts, [(group, draw(RESPONSE)) for group in range(6)])
        recompute = options.pop("recompute", False)
        learner = opened(self.folder / "model", recompute_activations=recompute, options=options)
        own = learner._named("policy")
        held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in (
            *own.network.module.parameters(), *own.network.weights.masters.values(), *own.optimizer.first.values(),
            *own.optimizer.second.values(),
        )}  # fmt: skip
        # A first pass makes what stays, gradients among it.
        for _ in range(2):
            with Live() as live:
                found = call(learner, "forward_hold", {"network": "policy"}, wave)[1]
                call(learner, "backward", {}, {"logprob": torch.ones_like(found["logprob"])})
        return sum(held.values()), live.most

    def check(self, kind, overrides=(), loosest=1.05, **options):
        """Whether the plan of such a model is what it takes, and at most so many times as much."""
        save_tiny(self.folder / "model", tiny_config(kind, **SIZES))
        shutil.copy(GOLDEN / "hf/tokenizer/tokenizer.json", self.folder / "model")
        planned = self.plan(*overrides)
        held, most = self.measure(**options)
        self.assertAlmostEqual((planned["weights"] + planned["moments"]) / held, 1.0, delta=0.02, msg=f"{kind} {planned}")
        of_batch = planned["activations"] + planned.get("logits", 0)
        self.assertGreater(of_batch / most, 0.97, f"{kind} {overrides}: {planned}, measured {most}")
        self.assertLess(of_batch / most, loosest, f"{kind} {overrides}: {planned}, measured {most}")

    def test_in_f32(self):
        for kind in ("LlamaConfig", "Qwen2Config", "Qwen3Config"):
            self.check(kind)

    def test_in_bf16(self):
        for kind in ("LlamaConfig", "Qwen3Config"):
            self.check(kind, ["learner.dtype=bf16"], dtype="bf16")

    def test_with_activations_computed_again(self):
        for kind in ("LlamaConfig", "Qwen3Config"):
            self.check(kind, ["model.recompute_activations=true"], recompute=True)

    def test_with_an_adapter(self):
        lora, key = {"rank": 8, "alpha": 16.0, "targets": None}, "learner.lora={rank: 8, alpha: 16}"
        again = [key, "learner.dtype=bf16", "model.recompute_activations=true"]
        self.check("LlamaConfig", [key], loosest=1.2, lora=lora)
        self.check("Qwen3Config", [key, "learner.dtype=bf16"], loosest=1.2, dtype="bf16", lora=lora)
        self.check("Qwen3Config", again, loosest=1.2, dtype="bf16", lora=lora, recompute=True)


if __name__ == "__main__":
    unittest.main()
