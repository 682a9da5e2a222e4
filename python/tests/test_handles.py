"""Weights that a server on the same GPU reads from its memory; what needs a GPU is in test_cuda.py."""

import base64
import json
import pathlib
import pickle
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, Case, golden_folder, opened, save_tiny, tiny_config

import torch
from safetensors.torch import load_file
from tamis.learner import handles
from tamis.learner.protocol import Refused
from test_checkpoint import save, train


class Handles(Case):
    def test_name_the_tensors_of_the_published_folder_and_hold_copies(self):
        for architecture in ARCHITECTURES:
            for options in ({}, {"lora": {"rank": 2, "alpha": 4.0}}):
                with self.subTest(architecture=architecture, **options), tempfile.TemporaryDirectory() as folder:
                    learner = opened(golden_folder(architecture), options=options)
                    train(learner)
                    save(learner, folder, "weights", untied=True)
                    expected = load_file(pathlib.Path(folder) / "model.safetensors")
                    held = handles.copy_tensors(learner._policy.network, True, torch.float32)
                    train(learner)
                    self.assertEqual(sorted(held), sorted(expected))
                    for name, tensor in held.items():
                        self.assertTrue(torch.equal(tensor, expected[name]), name)

    def test_experts_stay_on_the_device(self):
        """A handle only refers to a GPU's memory. The device `meta`, from which nothing can be copied, plays the GPU."""
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        for options in ({}, {"lora": {"rank": 2, "alpha": 4.0}}):
            with self.subTest(**options), tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as folder:
                save_tiny(model, tiny_config("Qwen3MoeConfig", **experts))
                learner = opened(model, options=options)
                train(learner)
                network = learner._policy.network
                save(learner, folder, "weights", untied=True)
                expected = load_file(pathlib.Path(folder) / "model.safetensors")
                held = handles.copy_tensors(network, True, torch.float32)
                self.assertEqual(sorted(held), sorted(expected))
                for name, tensor in held.items():
                    self.assertTrue(torch.equal(tensor, expected[name]), name)
                    self.assertTrue(tensor.is_contiguous(), name)
                places = {tensor.untyped_storage().data_ptr() for tensor in held.values()}
                self.assertEqual(len(places), len(held), "each has memory of its own")
                self.assertEqual({tensor.storage_offset() for tensor in held.values()}, {0})
                if options:
                    continue
                network.module.to("meta")
                for name, master in network.weights.masters.items():
                    network.weights.masters[name] = master.to("meta")
                played = handles.copy_tensors(network, True, torch.bfloat16)
                self.assertEqual({name: tensor.shape for name, tensor in played.items()}, {n: t.shape for n, t in held.items()})
                self.assertEqual({tensor.device.type for tensor in played.values()}, {"meta"})

    def test_say_what_vllm_asks_for(self):
        tensors = {"a.weight": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4)}
        content = json.loads(handles.describe(tensors, "GPU-7", lambda tensor: tuple(tensor.shape)))
        given = pickle.loads(base64.b64decode(content.pop("ipc_handles_pickled")))
        self.assertEqual(given, [{"GPU-7": (2, 3)}, {"GPU-7": (4,)}])
        self.assertEqual(
            content, {"names": ["a.weight", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], [4]]}
        )

    def test_need_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            learner = opened(golden_folder("qwen2"), options={"device": "cpu"})
            with self.assertRaises(Refused) as caught:
                save(learner, folder, "handles")
            self.assertIn("no GPU", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
