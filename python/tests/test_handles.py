"""Weights that a server on the same GPU reads from its memory; what needs a GPU is in test_cuda.py."""

import base64
import json
import pathlib
import pickle
import tempfile
import unittest

# First: it says so, and leaves the tests out, where PyTorch is missing.
from support import ARCHITECTURES, Case, golden_folder, opened

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
