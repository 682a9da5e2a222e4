"""Both learners over the public wire: the same log-probabilities, entropies, gradients, steps, every number of them.

An optimizer that keeps nothing of the step before (beta1 = 0) notes the gradient itself as its first moment, and a
step of length 0 changes nothing: so a checkpoint shows the gradient of every parameter, whoever learns.

Needs the program `tamis`: TAMIS_PROGRAM, or what cargo has built under target/.
"""

import pathlib
import subprocess
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, OPTIMIZER, Case, call, golden_folder, open_settings, random_columns

import torch
from safetensors.torch import load_file
from tamis.learner.learner import Learner

# Without the program it reports that and skips the tests.
from test_native import PROGRAM
from test_server import Client

NOTES_GRADIENTS = {**OPTIMIZER, "beta1": 0.0, "weight_decay": 0.0, "max_grad_norm": None}
# Gradients are clipped. AdamW divides a gradient by its own size, so that one which is nothing but rounding, a millionth
# of the tensor's largest, moves a weight as far as any other: with this epsilon it does not.
STEPS = {**OPTIMIZER, "epsilon": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5}
# Relative to the largest number of each tensor.
TOLERANCE = 1e-5
SHAPE = ((9, (12, 1, 30)), (3, (5,)), (17, (22, 7)))


class Learners(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.number = 0

    def native(self):
        """Calls of a native learner in a process of its own."""
        self.number += 1
        address = f"unix:{self.folder}/socket_{self.number}"
        process = subprocess.Popen(
            [PROGRAM, "learner", "--threads", "1", "--listen", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.assertIn(b"listening", process.stdout.readline())
        client = Client(address)
        self.addCleanup(client.close)

        def post(name, settings, given=None):
            status, values, answer = client.post(name, settings, given)
            self.assertEqual(status, 200, values)
            return answer

        return post

    def torch(self):
        """Calls of a PyTorch learner in this process."""
        learner = Learner()
        self.addCleanup(learner.close)
        return lambda name, settings, given=None: call(learner, name, settings, given)[1]

    def gradients(self, post, derivatives):
        """The columns of a held pass, and the gradient of every parameter for these derivatives of the loss."""
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        found = post("forward_hold", {"network": "policy"}, self.wave)
        post("backward", {}, derivatives)
        post("optim_step", {"network": "policy", "learning_rate": 0.0})
        post("save", {"folder": str(folder), "content": "checkpoint", "dtype": "f32"})
        moments = load_file(folder / "optimizer.safetensors")
        return found, {name.removeprefix("first."): one for name, one in moments.items() if name.startswith("first.")}

    def begin(self, architecture, optimizer, temperature=1.0):
        """Both learners, opened with the same policy."""
        settings = open_settings(golden_folder(architecture), temperature=temperature, optimizer=optimizer)
        native, ours = self.native(), self.torch()
        # Settings that only one kind of learner has.
        native("open", {name: value for name, value in settings.items() if name != "options"})
        ours("open", settings)
        return native, ours

    def check(self, architecture, temperature):
        generator = torch.Generator().manual_seed(7)
        self.wave = random_columns(96, 11, SHAPE)
        num_tokens = self.wave["completion_token"].numel()
        by_logprob, by_entropy = (torch.randn(num_tokens, generator=generator) for _ in range(2))
        cases = {
            "log-probabilities": {"logprob": by_logprob},
            "entropies": {"logprob": torch.zeros(num_tokens), "entropy": by_entropy},
            "both": {"logprob": by_logprob, "entropy": by_entropy},
        }
        # Two other tokens at every place.
        self.wave["candidate_token"] = torch.randint(96, (2 * num_tokens,), generator=generator, dtype=torch.int32)
        by_candidates = torch.randn(2 * num_tokens, generator=generator)
        cases["candidates"] = {"logprob": torch.zeros(num_tokens), "candidate": by_candidates}
        cases["all"] = {"logprob": by_logprob, "entropy": by_entropy, "candidate": by_candidates}
        native, ours = self.begin(architecture, NOTES_GRADIENTS, temperature)
        before, compared = None, set()
        for what, derivatives in cases.items():
            (expected, theirs), (found, own) = (self.gradients(post, derivatives) for post in (native, ours))
            self.assert_close(found["logprob"], expected["logprob"], TOLERANCE, architecture)
            self.assert_close(found["candidate"], expected["candidate"], TOLERANCE, architecture)
            # If a model is nearly certain, an entropy of 1e-4 nats is a difference of logits of 50: rounding.
            nats = max(1.0, expected["entropy"].max().item())
            self.assertLessEqual((found["entropy"] - expected["entropy"]).abs().max().item(), TOLERANCE * nats)
            self.assertEqual(set(own), set(theirs))
            if what == "entropies" and expected["entropy"].max() < 0.1:
                continue
            compared.add(what)
            for name, gradient in theirs.items():
                self.assertTrue(gradient.any(), name)
                self.assert_close(own[name], gradient, TOLERANCE, f"{architecture}, {what}, {name}")
            if before is not None:
                self.assertFalse(torch.equal(before, own["model.norm.weight"]), "each has a gradient of its own")
            before = own["model.norm.weight"]
        return compared

    def test_every_number_is_the_same_up_to_rounding(self):
        for architecture in ARCHITECTURES:
            compared = []
            # Qwen2's is nearly certain: at a high temperature its entropies count, too.
            for temperature in (1.0, 0.6, *([8.0] if architecture == "qwen2" else [])):
                with self.subTest(architecture, temperature=temperature):
                    compared.append(self.check(architecture, temperature))
            self.assertIn({"log-probabilities", "entropies", "both", "candidates", "all"}, compared, architecture)

    def test_the_likeliest_tokens_are_the_same(self):
        for architecture in ARCHITECTURES:
            native, ours = self.begin(architecture, NOTES_GRADIENTS)
            wave = random_columns(96, 12, SHAPE)
            settings = {"network": "policy", "top": 3}
            expected, found = (post("forward", settings, dict(wave)) for post in (native, ours))
            for name in ("logprob", "top_logprob"):
                self.assert_close(found[name], expected[name], TOLERANCE, f"{architecture}, {name}")
            # Two nearly equal ones may be exchanged.
            same = (found["top_token"] == expected["top_token"]).float().mean()
            self.assertGreater(same.item(), 0.9, architecture)

    def test_three_steps_of_adamw_are_the_same(self):
        self.wave = random_columns(96, 11, SHAPE)
        num_tokens = self.wave["completion_token"].numel()
        for architecture in ARCHITECTURES:
            generator = torch.Generator().manual_seed(8)
            learners = self.begin(architecture, STEPS)
            for learning_rate in (1e-2, 3e-3, 1e-3):
                derivatives = {"logprob": torch.randn(num_tokens, generator=generator)}
                norms = []
                for post in learners:
                    post("forward_hold", {"network": "policy"}, self.wave)
                    post("backward", {}, derivatives)
                    answer = post("optim_step", {"network": "policy", "learning_rate": learning_rate})
                    norms.append(answer["grad_norm"].item())
                self.assertGreater(norms[0], STEPS["max_grad_norm"], "it is clipped")
                self.assertLess(abs(norms[1] - norms[0]), TOLERANCE * norms[0])
            saved = []
            for number, post in enumerate(learners):
                folder = self.folder / f"{architecture}_{number}"
                folder.mkdir()
                post("save", {"folder": str(folder), "content": "checkpoint", "dtype": "f32"})
                saved.append([load_file(folder / name) for name in ("model.safetensors", "optimizer.safetensors")])
            begun = load_file(golden_folder(architecture) / "model.safetensors")
            for theirs, own in zip(*saved, strict=True):
                self.assertEqual(set(theirs), set(own))
                for name, tensor in theirs.items():
                    # Second moments are squares, which differ twice as much.
                    found, tensor = (one.sqrt() if name.startswith("second.") else one for one in (own[name], tensor))
                    self.assert_close(found, tensor, TOLERANCE, f"{architecture}, {name}")
            for name, tensor in saved[0][0].items():
                self.assertGreater((tensor - begun[name]).abs().max().item(), 1e-3, name)


if __name__ == "__main__":
    unittest.main()
