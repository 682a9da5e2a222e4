"""Adapters: off, they do not exist; on, only they are trained. peft reads the written files."""

import json
import pathlib
import shutil
import tempfile
import unittest
import warnings

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, OPTIMIZER, Case, call, golden_folder, opened, random_columns, save_tiny, tiny_config

import torch
import transformers
from safetensors.torch import load_file
from test_checkpoint import save, state, train
from test_model import derivatives, whole_logits
from tamis.learner.protocol import Refused, RequestError

try:
    import peft
except ImportError:
    print("\nSKIPPED: peft is not installed; scripts/install-torch makes .venv-torch\n")
    raise unittest.SkipTest("peft is not installed") from None

WAVE = random_columns(50)
LORA = {"rank": 3, "alpha": 5.0}


def adapted(folder, lora=None, **more):
    """A policy whose adapter already does something."""
    options = {"lora": {**LORA, **(lora or {})}, **more.pop("options", {})}
    return opened(folder, options=options, **more)


def stir(learner):
    """Makes B other than zero."""
    weights = learner._policy.network.weights
    generator = torch.Generator().manual_seed(3)
    for name, master in weights.masters.items():
        if "lora_B" in name:
            master.copy_(torch.randn(master.shape, generator=generator) * 0.2)
    weights.refresh()
    return learner


def forward(learner, network="policy"):
    return call(learner, "forward", {"network": network}, WAVE)[1]


class Adapters(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_off_it_is_not_there(self):
        for architecture in ARCHITECTURES:
            for dtype in ("f32", "bf16"):
                plain = forward(opened(golden_folder(architecture), options={"dtype": dtype}))
                learner = adapted(golden_folder(architecture), options={"dtype": dtype})
                for network in ("policy", "base"):
                    # At first it adds nothing.
                    self.assert_same(forward(learner, network)["logprob"], plain["logprob"])
                stir(learner)
                train(learner)
                for name in plain:
                    self.assert_same(forward(learner, "base")[name], plain[name])
                    self.assertFalse(torch.equal(forward(learner)[name], plain[name]))

    def test_it_alone_is_trained(self):
        learner = adapted(golden_folder("qwen3"))
        network = learner._policy.network
        frozen = {name: one.clone() for name, one in network.module.named_parameters() if ".lora_" not in name}
        sizes = network.sizes()
        # Rank 3 beside every linear layer of two: q, k, v, o, gate, up, down.
        per_layer = 3 * ((48 + 64) + 2 * (48 + 32) + (64 + 48) + 2 * (48 + 112) + (112 + 48))
        self.assertEqual(sizes["num_trained"], 2 * per_layer)
        call(learner, "forward_hold", {"network": "policy"}, WAVE)
        call(learner, "backward", {}, {"logprob": derivatives(WAVE["completion_token"].numel())[0]})
        for name, parameter in network.module.named_parameters():
            self.assertEqual(parameter.requires_grad, ".lora_" in name, name)
            self.assertEqual(parameter.grad is not None, ".lora_" in name, name)
        before = state(learner)[0]
        call(learner, "optim_step", {"network": "policy", "learning_rate": 1e-2})
        train(learner)
        for name, tensor in state(learner)[0].items():
            self.assertFalse(torch.equal(tensor, before[name]), name)
        for name, tensor in frozen.items():
            self.assert_same(dict(network.module.named_parameters())[name], tensor, name)

    def test_gradients_are_those_of_peft(self):
        for recompute in (False, True):
            learner = stir(adapted(golden_folder("qwen2"), recompute_activations=recompute))
            answer = save(learner, self.empty("adapter"), "adapter")
            self.assertEqual(
                {one["name"] for one in answer["files"]}, {"adapter_config.json", "adapter_model.safetensors"}
            )
            base = transformers.AutoModelForCausalLM.from_pretrained(golden_folder("qwen2"), dtype=torch.float64)
            with warnings.catch_warnings(action="ignore"):
                where = self.folder / "adapter"
                module = peft.PeftModel.from_pretrained(base, where, is_trainable=True, autocast_adapter_dtype=False)
            module = module.double().eval()
            expected = whole_logits(module, WAVE)
            _, found = call(learner, "forward_hold", {"network": "policy"}, WAVE)
            # In between, the policy without it.
            forward(learner, "base")
            for name, column in zip(("logprob", "entropy"), expected):
                self.assert_close(found[name], column, 1e-5)
            given = derivatives(found["logprob"].numel())
            call(learner, "backward", {}, dict(zip(("logprob", "entropy"), given)))
            torch.autograd.backward(expected, [one.double() for one in given])
            theirs = {
                name.replace(".default", ""): one.grad for name, one in module.named_parameters() if one.requires_grad
            }
            weights = learner._policy.network.weights
            self.assertEqual(set(theirs), set(weights.masters))
            self.assertEqual(set(theirs), set(load_file(self.folder / "adapter/adapter_model.safetensors")))
            for name in theirs:
                self.assert_close(weights.gradient(name), theirs[name], 1e-5, name)

    def empty(self, name):
        folder = self.folder / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        return folder

    def test_merged_weights(self):
        for architecture in ARCHITECTURES:
            learner = stir(adapted(golden_folder(architecture)))
            folder = self.empty("merged")
            save(learner, folder, "weights")
            original = load_file(golden_folder(architecture) / "model.safetensors")
            merged = load_file(folder / "model.safetensors")
            self.assertEqual(set(merged), set(original))
            other = opened(folder)
            for name, column in forward(learner).items():
                self.assert_close(forward(other)[name], column, 2e-5, architecture)
            for name in original:
                is_adapted = "_proj.weight" in name
                self.assertEqual(torch.equal(merged[name], original[name]), not is_adapted, name)

    def test_merged_weights_of_layers_that_are_turned(self):
        config = tiny_config("GPT2Config", n_embd=24, n_head=4, n_layer=1, n_positions=64, n_inner=40)
        save_tiny(self.folder, config)
        learner = stir(adapted(self.folder, {"targets": ["c_attn", "c_proj", "c_fc"]}))
        folder = self.empty("merged")
        save(learner, folder, "weights", untied=True)
        for name, column in forward(learner).items():
            self.assert_close(forward(opened(folder))[name], column, 2e-5)

    def test_experts_that_are_fused(self):
        """Every tensor of the mixture is merged, under the name that servers know, and peft reads the adapter."""
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        names_of = {"f32": "float32", "bf16": "bfloat16"}
        cases = {"Qwen3MoeConfig": experts, "MixtralConfig": dict(num_local_experts=4)}
        for kind, more in cases.items():
            for targets in (None, ["q_proj", "gate_proj", "up_proj", "down_proj"]):
                if targets and kind == "MixtralConfig":
                    continue
                for dtype in ("f32", "bf16"):
                    with self.subTest(kind, targets=targets, dtype=dtype), tempfile.TemporaryDirectory() as base:
                        save_tiny(base, tiny_config(kind, **more))
                        learner = stir(adapted(base, {"targets": targets}, options={"dtype": dtype}))
                        names = list(learner._policy.network.weights.masters)
                        self.assertTrue(any(".experts." in name for name in names), names[:9])
                        train(learner)
                        found = forward(learner)["logprob"]
                        folder = self.empty("merged")
                        save(learner, folder, "weights")
                        original = load_file(pathlib.Path(base) / "model.safetensors")
                        merged = load_file(folder / "model.safetensors")
                        self.assertEqual(set(merged), set(original))
                        for name in original:
                            changes = "_proj.weight" in name if targets is None else name.split(".")[-2] in targets
                            if changes or ".experts." in name:
                                self.assertFalse(torch.equal(merged[name], original[name]), name)
                            elif "norm" in name or "embed" in name:
                                held = original[name].to(torch.bfloat16 if dtype == "bf16" else torch.float32)
                                self.assert_same(merged[name], held.float(), name)
                        if dtype == "f32":
                            # In bf16, rounding sometimes sends a token to other experts.
                            self.assert_close(forward(opened(folder))["logprob"], found, 2e-5)
                        # The result of peft itself with base and adapter, in f32.
                        folder = self.empty("adapter")
                        save(learner, folder, "adapter")
                        module = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, names_of[dtype]))
                        with warnings.catch_warnings(action="ignore"):
                            module = peft.PeftModel.from_pretrained(module.float(), folder).merge_and_unload()
                        theirs = dict(module.named_parameters())
                        for name, _, make in learner._policy.network.file_tensors():
                            self.assert_close(make(), theirs[name], 1e-6, name)
                        # And a resume continues.
                        folder = self.empty("checkpoint")
                        save(learner, folder)
                        other = adapted(base, {"targets": targets, "seed": 9}, options={"dtype": dtype})
                        call(other, "load", {"folder": str(folder), "content": "checkpoint"})
                        self.assert_same(forward(other)["logprob"], found)

    def test_resumed(self):
        for dtype in ("f32", "bf16"):
            learner = adapted(golden_folder("llama"), {"targets": ["q_proj", "down_proj"]}, options={"dtype": dtype})
            train(learner)
            folder = self.empty(dtype)
            save(learner, folder, dtype="bf16")
            self.assertFalse((folder / "master").exists())
            config = json.loads((folder / "adapter/adapter_config.json").read_text())
            self.assertEqual(
                (config["r"], config["lora_alpha"], config["target_modules"]), (3, 5.0, ["down_proj", "q_proj"])
            )
            other = adapted(
                golden_folder("llama"), {"targets": ["q_proj", "down_proj"], "seed": 9}, options={"dtype": dtype}
            )
            first, second = state(learner)[0], state(other)[0]
            self.assertFalse(all(torch.equal(first[name], second[name]) for name in first))
            call(other, "load", {"folder": str(folder), "content": "checkpoint"})
            train(learner), train(other)
            (found, steps), (expected, expected_steps) = state(other), state(learner)
            self.assertEqual(steps, expected_steps)
            for name in expected:
                self.assert_same(found[name], expected[name], name)
            self.assert_same(forward(other)["logprob"], forward(learner)["logprob"])

    def test_an_adapter_that_f16_has_no_room_for(self):
        learner = stir(adapted(golden_folder("qwen2")))
        masters = learner._policy.network.weights.masters
        name = next(name for name in masters if "lora_B" in name)
        masters[name][0, 0] = 1e6
        folder = self.empty("wide")
        self.assertEqual(save(learner, folder, "adapter", "f16")["overflow"], {"tensor": name, "largest": 1e6})
        self.assertEqual(load_file(folder / "adapter_model.safetensors")[name][0, 0].item(), 1e6)

    def test_the_seed_draws_it(self):
        first, again, other = (state(adapted(golden_folder("llama"), {"seed": seed}))[0] for seed in (1, 1, 2))
        name = next(name for name in first if "weight.base_model" in name and "lora_A" in name)
        self.assert_same(first[name], again[name])
        self.assertFalse(torch.equal(first[name], other[name]))
        self.assertTrue(first[name].any())

    def test_keep_before_and_reference(self):
        learner = stir(adapted(golden_folder("qwen3"), options={"dtype": "bf16"}))
        before = forward(learner)
        call(learner, "keep")
        call(learner, "copy", {"to": "reference"})
        train(learner)
        self.assertFalse(torch.equal(forward(learner)["logprob"], before["logprob"]))
        for network in ("before", "reference"):
            self.assert_same(forward(learner, network)["logprob"], before["logprob"])
        call(learner, "restore")
        self.assert_same(forward(learner)["logprob"], before["logprob"])

    def test_what_is_refused(self):
        folder = golden_folder("qwen3")
        self.assert_refused(RequestError, "`dropout` of `lora` must be 0", adapted, folder, {"dropout": 0.1})
        self.assert_refused(RequestError, "`rank`", adapted, folder, {"rank": 0})
        self.assert_refused(RequestError, "unknown key `r`", adapted, folder, {"r": 3})
        self.assert_refused(Refused, "does not fit the policy", adapted, folder, {"targets": ["nothing_proj"]})
        self.assert_refused(
            Refused, "output head or of the embedding", adapted, folder, {"targets": ["q_proj", "lm_head"]}
        )
        self.assert_refused(Refused, "output head or of the embedding", adapted, folder, {"targets": ["embed_tokens"]})
        save_tiny(self.folder, tiny_config("GPT2Config", n_embd=24, n_head=4, n_layer=1, n_positions=64, n_inner=40))
        self.assert_refused(
            Refused, "an adapter of `transformer.wpe` cannot be merged", adapted, self.folder, {"targets": ["c_attn", "wpe"]}
        )
        learner = adapted(folder, critic={"optimizer": OPTIMIZER})
        self.assert_refused(Refused, "policy that has an adapter", call, learner, "copy", {"to": "critic"})
        self.assert_refused(Refused, "has no adapter", save, opened(folder), self.empty("x"), "adapter")


if __name__ == "__main__":
    unittest.main()
