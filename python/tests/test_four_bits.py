"""A policy in 4 bits below an adapter: the numbers of peft over transformers' own quantised model."""

import json
import pathlib
import shutil
import tempfile
import unittest
import unittest.mock
import warnings

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, Case, call, columns, golden_folder, opened, random_columns, save_tiny, tiny_config

import torch
import transformers
from safetensors.torch import load_file
from test_checkpoint import save, state, train
from test_generate import numbered, to_the_end
from test_model import derivatives, whole_logits
from tamis.learner import four_bits
from tamis.learner.protocol import Refused, RequestError

try:
    import bitsandbytes
    import peft
except ImportError as missing:
    print(f"\nSKIPPED: {missing.name} is not installed; scripts/install-torch makes .venv-torch\n")
    raise unittest.SkipTest(f"{missing.name} is not installed") from None

WAVE = random_columns(50)
LORA = {"rank": 3, "alpha": 5.0, "base": "nf4"}


def quantised(folder, lora=None, **more):
    """A policy in 4 bits whose adapter already does something."""
    learner = opened(folder, options={"lora": {**LORA, **(lora or {})}, **more.pop("options", {})}, **more)
    weights = learner._policy.network.weights
    generator = torch.Generator().manual_seed(3)
    for name, master in weights.masters.items():
        if "lora_B" in name:
            master.copy_((torch.randn(master.shape, generator=generator) * 0.2).to(master.device))
    weights.refresh()
    return learner


def peft_of(base, adapter, dtype):
    """peft's model over the same base, quantised by transformers while it is loaded."""
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    with warnings.catch_warnings(action="ignore"):
        module = transformers.AutoModelForCausalLM.from_pretrained(
            base, quantization_config=config, dtype=dtype, device_map="cpu", attn_implementation="eager"
        )
        module = peft.PeftModel.from_pretrained(module, adapter, is_trainable=True, autocast_adapter_dtype=False)
    # Not for dropout, which is 0: in evaluation bitsandbytes repacks weights on some CPUs, and has other products.
    return module.train()


def forward(learner, network="policy"):
    return call(learner, "forward", {"network": network}, WAVE)[1]


class FourBits(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def empty(self, name):
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def test_log_probabilities_and_gradients_are_those_of_peft(self):
        # Fused attention beside the model's own, in bf16 of 8 bits.
        for dtype, tolerance in (("f32", 1e-5), ("bf16", 6e-2)):
            for architecture in ARCHITECTURES:
                for recompute in (False, True):
                    with self.subTest(architecture, dtype=dtype, recompute=recompute):
                        folder = golden_folder(architecture)
                        learner = quantised(folder, options={"dtype": dtype}, recompute_activations=recompute)
                        save(learner, self.empty("adapter"), "adapter")
                        theirs = peft_of(folder, self.folder / "adapter", torch.float32 if dtype == "f32" else torch.bfloat16)
                        expected = whole_logits(theirs, WAVE)
                        _, found = call(learner, "forward_hold", {"network": "policy"}, WAVE)
                        for name, column in zip(("logprob", "entropy"), expected):
                            self.assert_close(found[name], column, tolerance, name)
                        given = derivatives(found["logprob"].numel())
                        call(learner, "backward", {}, dict(zip(("logprob", "entropy"), given)))
                        torch.autograd.backward(expected, [one.to(column.dtype) for one, column in zip(given, expected)])
                        weights = learner._policy.network.weights
                        gradients = {
                            name.replace(".default", ""): one.grad for name, one in theirs.named_parameters() if one.requires_grad
                        }
                        self.assertEqual(set(gradients), set(weights.masters))
                        for name, gradient in gradients.items():
                            found, gradient = weights.gradient(name).double().cpu(), gradient.double()
                            distance = (found - gradient).norm() / gradient.norm().clamp_min(1e-30)
                            self.assertLessEqual(float(distance), tolerance, name)

    def test_quantised_are_the_layers_that_transformers_quantises(self):
        for architecture in ARCHITECTURES:
            folder = golden_folder(architecture)
            learner = quantised(folder)
            save(learner, self.empty("adapter"), "adapter")
            theirs = dict(peft_of(folder, self.folder / "adapter", torch.float32).named_parameters())
            network = learner._policy.network
            own = {f"base_model.model.{name}": one for name, one in network.module.named_parameters()}
            self.assertEqual(set(own), set(theirs))
            for name, parameter in own.items():
                self.assertEqual(four_bits.is_quantised(parameter), theirs[name].dtype == torch.uint8, name)
                if four_bits.is_quantised(parameter):
                    self.assert_same(parameter.data.reshape(-1), theirs[name].data.reshape(-1), name)
            whole = opened(folder)._policy.network.sizes()
            sizes = network.sizes()
            self.assertEqual(sizes["num_parameters"] - sizes["num_trained"], whole["num_parameters"])
            self.assertRegex("\n".join(network.describe()), "parameters are held in 4 bits")

    def test_merged_weights_are_the_dequantised_ones_with_the_adapter(self):
        for dtype in ("f32", "bf16"):
            folder = golden_folder("qwen2")
            learner = quantised(folder, options={"dtype": dtype})
            train(learner)
            found = forward(learner)
            save(learner, self.empty("merged"), "weights")
            merged, original = (load_file(one / "model.safetensors") for one in (self.folder / "merged", folder))
            self.assertEqual({name: one.shape for name, one in merged.items()}, {name: one.shape for name, one in original.items()})
            save(learner, self.empty("adapter"), "adapter")
            theirs = peft_of(folder, self.folder / "adapter", torch.float32 if dtype == "f32" else torch.bfloat16).base_model.model
            num_merged = 0
            for name, layer in theirs.named_modules():
                if not hasattr(layer, "lora_A"):
                    continue
                # Written out: peft's own merge quantises the sum again.
                base = layer.get_base_layer()
                whole = bitsandbytes.functional.dequantize_4bit(base.weight.data, base.weight.quant_state).float()
                added = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float() * (5.0 / 3)
                if dtype == "f32":
                    self.assert_close(merged[name + ".weight"], whole + added, 1e-6, name)
                self.assertGreater((merged[name + ".weight"] - original[name + ".weight"]).abs().max(), 1e-3, name)
                num_merged += 1
            self.assertEqual(num_merged, sum(name.endswith("_proj.weight") for name in original))
            # The exported model has the policy's numbers.
            if dtype == "f32":
                for name, column in found.items():
                    self.assert_close(forward(opened(self.folder / "merged"))[name], column, 2e-5, name)
            save(learner, self.empty("half"), "weights", dtype="bf16")
            for name, one in load_file(self.folder / "half/model.safetensors").items():
                self.assert_same(one, merged[name].bfloat16(), name)

    def test_resumed(self):
        for dtype in ("f32", "bf16"):
            learner = quantised(golden_folder("llama"), options={"dtype": dtype})
            train(learner)
            save(learner, self.empty("checkpoint"), dtype="bf16")
            other = quantised(golden_folder("llama"), {"seed": 9}, options={"dtype": dtype})
            call(other, "load", {"folder": str(self.folder / "checkpoint"), "content": "checkpoint"})
            train(learner), train(other)
            (found, steps), (expected, expected_steps) = state(other), state(learner)
            self.assertEqual(steps, expected_steps)
            for name in expected:
                self.assert_same(found[name], expected[name], name)
            for network in ("policy", "base"):
                self.assert_same(forward(other, network)["logprob"], forward(learner, network)["logprob"])

    def test_a_reference_made_of_it_keeps_its_numbers(self):
        learner = quantised(golden_folder("qwen3"), options={"offload_reference": True})
        before = forward(learner)
        call(learner, "copy", {"to": "reference"})
        train(learner)
        self.assert_same(forward(learner, "reference")["logprob"], before["logprob"])
        self.assertFalse(torch.equal(forward(learner)["logprob"], before["logprob"]))

    def test_samples_are_of_the_same_weights(self):
        """Log-probabilities of samples are those of a pass over them, and far from those of the original weights."""
        for architecture in ("qwen2", "qwen3"):
            learner = quantised(golden_folder(architecture), generation={"max_sequences": 6})
            groups = numbered()
            found, _ = to_the_end(learner, groups)
            sequences = [(place, found[sample]["token"]) for place, (_, group) in enumerate(groups) for sample in group]
            wave = columns([prompt for prompt, _ in groups], sequences)
            told = [number for _, group in groups for sample in group for number in found[sample]["logprob"]]
            _, passed = call(learner, "forward", {"network": "policy"}, wave)
            self.assert_close(told, passed["logprob"], 1e-5, architecture)
            whole = quantised(golden_folder(architecture), {"base": "dtype"})
            _, others = call(whole, "forward", {"network": "policy"}, wave)
            with self.assertRaises(AssertionError):
                self.assert_close(told, others["logprob"], 1e-3, architecture)

    def test_fused_experts_stay_whole(self):
        config = tiny_config("Qwen3MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        save_tiny(self.folder, config)
        learner = quantised(self.folder)
        network = learner._policy.network
        held = {name: four_bits.is_quantised(one) for name, one in network.module.named_parameters()}
        self.assertTrue(any(held[name] for name in held if ".q_proj." in name))
        self.assertFalse(any(held[name] for name in held if ".experts." in name or "embed" in name or "lm_head" in name))
        train(learner)
        folder = self.empty("merged")
        save(learner, folder, "weights")
        self.assert_close(forward(opened(folder))["logprob"], forward(learner)["logprob"], 2e-5)

    def test_what_is_refused(self):
        folder = golden_folder("qwen3")
        self.assert_refused(RequestError, "`base`", quantised, folder, {"base": "int4"})
        with unittest.mock.patch.dict("sys.modules", {"bitsandbytes": None}):
            self.assert_refused(Refused, "need bitsandbytes", quantised, folder)
        # A model that somebody else has quantised.
        shutil.copytree(folder, self.folder / "theirs")
        config = json.loads((folder / "config.json").read_text())
        (self.folder / "theirs/config.json").write_text(json.dumps({**config, "quantization_config": {"load_in_4bit": True}}))
        for base in ("nf4", "dtype"):
            self.assert_refused(Refused, "are quantised already", quantised, self.folder / "theirs", {"base": base})
        save_tiny(self.folder, tiny_config("GPT2Config", n_embd=24, n_head=4, n_layer=1, n_positions=64, n_inner=40))
        self.assert_refused(Refused, "no linear layers", quantised, self.folder, {"targets": ["c_attn"]})


if __name__ == "__main__":
    unittest.main()
