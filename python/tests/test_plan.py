"""The parameters that a run's plan assigns to its learner, compared with the size of the learner's tensors on a CPU."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import GOLDEN, Case, opened, save_tiny, tiny_config

from tamis.learner import four_bits

PROGRAM = os.environ.get("TAMIS_PROGRAM")
SIZES = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 640, "max_position_embeddings": 4096,
}  # fmt: skip

CONFIG = """
model: {{path: {folder}}}
data: {{task: arithmetic, train_batch_size: 8, max_prompt_length: 64}}
rollout: {{n: 4, max_response_length: 192, backend: vllm, servers: ['http://127.0.0.1:1']}}
reward: [{{kind: number}}]
train: {{total_steps: 1, micro_batch_tokens: 1536}}
learner: {{backend: torch, device: cpu}}
"""


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
        return {part["name"]: part["bytes"] for part in memory["parts"]}

    def measure(self, **options):
        """Bytes that a learner holds: weights and moments."""
        learner = opened(self.folder / "model", options=options)
        own = learner._named("policy")
        quantised = [one.quant_state for one in own.network.module.parameters() if four_bits.is_quantised(one)]
        scales = [tensor for state in quantised for tensor in (state.absmax, state.state2.absmax)]
        held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in (
            *own.network.module.parameters(), *own.network.weights.masters.values(), *scales,
        )}  # fmt: skip
        return sum(held.values()) + own.optimizer.first.num_bytes + own.optimizer.second.num_bytes

    def check(self, kind, overrides=(), **options):
        """Whether the plan of such a model equals the memory that it takes."""
        save_tiny(self.folder / "model", tiny_config(kind, **SIZES))
        shutil.copy(GOLDEN / "hf/tokenizer/tokenizer.json", self.folder / "model")
        planned = self.plan(*overrides)
        held = self.measure(**options)
        self.assertAlmostEqual((planned["weights"] + planned["moments"]) / held, 1.0, delta=0.02, msg=f"{kind} {planned}")

    def test_in_f32(self):
        for kind in ("LlamaConfig", "Qwen2Config", "Qwen3Config"):
            self.check(kind)

    def test_in_bf16(self):
        for kind in ("LlamaConfig", "Qwen3Config"):
            self.check(kind, ["learner.dtype=bf16"], dtype="bf16")

    def test_with_an_adapter(self):
        lora, key = {"rank": 8, "alpha": 16.0, "targets": None}, "learner.lora={rank: 8, alpha: 16}"
        self.check("LlamaConfig", [key], lora=lora)
        self.check("Qwen3Config", [key, "learner.dtype=bf16"], dtype="bf16", lora=lora)

    def test_with_moments_in_8_bits(self):
        self.check("LlamaConfig", ["learner.moments=8bit"], moments="8bit")
        self.check("Qwen3Config", ["learner.moments=8bit", "learner.dtype=bf16"], dtype="bf16", moments="8bit")

    @unittest.skipUnless(importlib.util.find_spec("bitsandbytes"), "bitsandbytes is not installed")
    def test_over_4_bits(self):
        lora, key = {"rank": 8, "alpha": 16.0, "targets": None, "base": "nf4"}, "learner.lora={rank: 8, alpha: 16, base: nf4}"
        self.check("LlamaConfig", [key], lora=lora)
        self.check("Qwen3Config", [key, "learner.dtype=bf16"], dtype="bf16", lora=lora)


if __name__ == "__main__":
    unittest.main()
