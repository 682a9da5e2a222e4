"""On a GPU: kernels, bf16, memory. Skipped, with a message, if there is none."""

import json
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, OPTIMIZER, ROOT, Case, call, columns, golden_folder, opened, random_columns, with_continuous_batching

import torch
from test_checkpoint import state, train
from test_generate import PLAIN, numbered, to_the_end
from test_logprob import draw, gradients, whole
from tamis.learner.device import is_device_lost
from tamis.learner.logprob import logprob_and_entropy
from tamis.learner.protocol import Refused

if not torch.cuda.is_available():
    print("\nSKIPPED: there is no GPU, so kernels of CUDA were not tried\n", file=sys.stderr)
    raise unittest.SkipTest("there is no GPU")

WAVE = random_columns(50)
DEVICE = torch.device("cuda")


def on_gpu(folder, **options):
    return opened(folder, options={"device": "cuda", "dtype": "auto", **options}, critic={"optimizer": OPTIMIZER})


class LogProb(Case):
    def check(self, drawn, chunk, tolerance, **constants):
        hidden, weight, bias, targets, derivatives = drawn
        inputs = [one if one is None else one.to(DEVICE) for one in (hidden, weight, bias)]
        targets, derivatives = targets.to(DEVICE), derivatives.to(DEVICE)
        found = gradients(
            lambda h, w, b: logprob_and_entropy(h, w, b, targets, chunk=chunk, **constants), inputs, derivatives
        )
        exact = [one if one is None else one.double() for one in inputs]
        expected = gradients(lambda h, w, b: whole(h, w, b, targets, **constants), exact, derivatives)
        for one, other in zip(found[0], expected[0]):
            self.assert_close(one.cpu(), other.cpu(), 1e-5)
        for one, other in zip(found[1], expected[1]):
            self.assert_close(one.cpu(), other.cpu(), tolerance)

    def test_equals_whole_logits(self):
        for constants in ({}, {"factor": 1.7}, {"cap": 4.0, "scale": 0.5}):
            self.check(draw(1, num_tokens=300, width=64, vocab_size=1000), 7, 1e-5, **constants)
            drawn = draw(2, num_tokens=300, width=64, vocab_size=1000, size=0.3, dtype=torch.bfloat16, has_bias=False)
            # Several chunks add to one gradient in f32, so only its rounding to bf16 remains.
            self.check(drawn, 7, 5e-3, **constants)

    def test_memory_is_that_of_a_chunk(self):
        hidden = torch.randn(8192, 512, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(50000, 512, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(50000, (8192,), device=DEVICE)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        logprob, entropy = logprob_and_entropy(hidden, weight, None, targets, chunk=256)
        (logprob.sum() + entropy.sum()).backward()
        # The whole logits would be 1.6 GB; a chunk's 51 MB, four of them, and the head's gradient 100 MB in f32.
        self.assertLess(torch.cuda.max_memory_allocated() - before, 600e6)


_READER = """
import base64, json, pickle, sys, torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor
content = json.load(open(sys.argv[1]))
sums = {}
for name, handle in zip(content["names"], pickle.loads(base64.b64decode(content["ipc_handles_pickled"]))):
    (arguments,) = handle.values()
    sums[name] = float(rebuild_cuda_tensor(*arguments).double().sum())
print(json.dumps(sums))
"""


class Handles(Case):
    def test_another_process_reads_the_weights_as_they_were(self):
        learner = on_gpu(golden_folder("qwen2"))
        with tempfile.TemporaryDirectory() as folder:
            call(learner, "save", {"folder": folder, "content": "handles", "dtype": "f32", "untied": True})
            held = {name: float(tensor.double().sum()) for name, tensor in learner._shared.items()}
            train(learner)
            command = [sys.executable, "-c", _READER, f"{folder}/handles.json"]
            read = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        self.assertEqual(json.loads(read.stdout), held)


class Device(Case):
    def test_what_the_device_survives_is_told_from_what_it_does_not(self):
        with self.assertRaises(RuntimeError) as refused:
            torch.cuda.set_device(torch.cuda.device_count())
        self.assertIn("CUDA error", str(refused.exception))
        self.assertFalse(is_device_lost(refused.exception))
        # In a process of its own, which computes nothing after it.
        fails = (
            "import torch; from tamis.learner.device import is_device_lost\n"
            "try:\n"
            "    torch.zeros(2, device='cuda')[torch.tensor([5], device='cuda')].cpu()\n"
            "except RuntimeError as error:\n"
            "    print(is_device_lost(error))\n"
        )
        told = subprocess.run(
            [sys.executable, "-c", fails], capture_output=True, text=True, timeout=300, cwd=ROOT / "python", check=False
        )
        self.assertEqual(told.stdout.strip(), "True", told.stderr)


class Policies(Case):
    def test_near_the_cpu(self):
        for architecture in ARCHITECTURES:
            given, found = WAVE, []
            cpu = opened(golden_folder(architecture), options={"device": "cpu", "dtype": "f32"})
            for learner in (cpu, on_gpu(golden_folder(architecture), dtype="f32"), on_gpu(golden_folder(architecture))):
                _, scores = call(learner, "forward_hold", {"network": "policy"}, given)
                derivative = torch.sin(scores["logprob"].cpu() * 3)
                if found:
                    derivative = found[0][2]
                call(learner, "backward", {}, {"logprob": derivative, "entropy": derivative})
                weights = learner._policy.network.weights
                own = {name: weights.gradient(name).cpu() for name in weights.masters}
                found.append((scores["logprob"].cpu(), own, derivative))
            for (logprob, own, _), tolerance in zip(found[1:], (1e-4, 3e-2)):
                self.assert_close(logprob, found[0][0], tolerance, architecture)
                for name, gradient in own.items():
                    self.assert_close(gradient, found[0][1][name], 4 * tolerance, f"{architecture} {name}")

    def test_varlen_is_what_is_taken(self):
        # Heads of 16 numbers; flash kernels want a multiple of 8.
        learner = on_gpu(golden_folder("qwen3"))
        network = learner._policy.network
        self.assertEqual(
            (network.attention, network.is_packed, network.options.dtype), ("tamis_varlen", True, torch.bfloat16)
        )
        other = on_gpu(golden_folder("qwen3"), attention="sdpa")
        one, two = (call(each, "forward", {"network": "policy"}, WAVE)[1]["logprob"].cpu() for each in (learner, other))
        self.assert_close(one, two, 3e-2)

    def test_prompts_are_shared_and_give_the_same_gradients(self):
        given = random_columns(50, shape=((150, (70, 1, 40, 9)), (6, (12, 5))))
        for recompute in (False, True):
            learner = opened(golden_folder("qwen3"), options={"device": "cuda", "dtype": "auto"}, recompute_activations=recompute)
            network = learner._policy.network
            self.assertEqual((network.attention, network.shares_prompts), ("tamis_varlen", True), network.unshared)
            found = []
            for shares, gathered in ((False, 4), (True, 4), (True, 0)):
                network.shares_prompts = shares
                with unittest.mock.patch("tamis.learner.packing._GATHERED", gathered):
                    _, scores = call(learner, "forward_hold", {"network": "policy"}, given)
                    call(learner, "backward", {}, {"logprob": torch.sin(torch.arange(scores["logprob"].numel()) * 3.0)})
                weights = network.weights
                own = {name: weights.gradient(name).cpu() for name in weights.masters}
                weights.clear_gradients()
                found.append((scores["logprob"].cpu(), own))
            for logprob, own in found[1:]:
                self.assert_close(logprob, found[0][0], 3e-2)
                for name, gradient in own.items():
                    self.assert_close(gradient, found[0][1][name], 0.1, name)

    def test_steps_are_those_of_the_cpu(self):
        found = []
        for device in ("cpu", "cuda"):
            learner = opened(golden_folder("qwen3"), options={"device": device, "dtype": "f32"})
            train(learner, 3)
            found.append(state(learner)[0])
        for name, expected in found[0].items():
            self.assertTrue(expected.any(), name)
            self.assert_close(found[1][name], expected, 1e-2, name)

    def test_steps_keep_and_restore(self):
        learner = on_gpu(golden_folder("qwen3"), offload_reference=True)
        call(learner, "copy", {"to": "critic"})
        call(learner, "copy", {"to": "reference"})
        first = call(learner, "forward", {"network": "policy"}, WAVE)[1]["logprob"]
        train(learner), train(learner, 1, "critic")
        before = state(learner)
        scores = call(learner, "forward", {"network": "policy"}, WAVE)[1]["logprob"]
        call(learner, "keep")
        train(learner)
        self.assert_same(call(learner, "forward", {"network": "before"}, WAVE)[1]["logprob"], scores)
        call(learner, "restore")
        for name, tensor in state(learner)[0].items():
            self.assert_same(tensor, before[0][name], name)
        self.assert_same(call(learner, "forward", {"network": "policy"}, WAVE)[1]["logprob"], scores)
        self.assert_close(
            call(learner, "forward", {"network": "reference"}, WAVE)[1]["logprob"].cpu(), first.cpu(), 1e-6
        )
        self.assertEqual(call(learner, "check")[0], {"not_finite": None})

    def test_samples_have_the_log_probabilities_of_a_pass(self):
        for dtype, tolerance in (("f32", 1e-4), ("bf16", 5e-2)):
            for cut in ({}, {"top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2}):
                learner = opened(
                    golden_folder("qwen3"), options={"device": "cuda", "dtype": dtype}, generation={"max_sequences": 6},
                    recompute_activations=True,
                )  # fmt: skip
                groups = numbered()
                found, _ = to_the_end(learner, groups, drawings=({**PLAIN, **cut},))
                samples = [(place, number) for place, (_, members) in enumerate(groups) for number in members]
                self.assertEqual({len(found[number]["token"]) for _, number in samples}, {PLAIN["max_tokens"]})
                wave = columns([prompt for prompt, _ in groups], [(place, found[number]["token"]) for place, number in samples])
                _, scores = call(learner, "forward", {"network": "policy"}, wave)
                for name in ("logprob", "entropy"):
                    drawn = torch.tensor([value for _, number in samples for value in found[number][name]])
                    self.assert_close(drawn, scores[name].cpu(), tolerance, f"{dtype} {name}")

    @with_continuous_batching
    def test_continuous_batching_has_the_log_probabilities_of_a_pass(self):
        try:
            learner = opened(
                golden_folder("qwen3"), options={"device": "cuda", "continuous_batching": True}, generation={"max_sequences": 6}
            )
        except Refused as error:
            self.assertIn("needs flash-attention", str(error))
            self.skipTest(str(error))
        groups = [([1 + place % 40 for place in range(40)], [0, 1, 2]), *((prompt, [10 + one for one in group]) for prompt, group in numbered())]
        found, _ = to_the_end(learner, groups)
        samples = [(place, number) for place, (_, members) in enumerate(groups) for number in members]
        wave = columns([prompt for prompt, _ in groups], [(place, found[number]["token"]) for place, number in samples])
        _, scores = call(learner, "forward", {"network": "policy"}, wave)
        for name in ("logprob", "entropy"):
            drawn = torch.tensor([value for _, number in samples for value in found[number][name]])
            self.assert_close(drawn, scores[name].cpu(), 5e-2, name)

    def test_adapter(self):
        learner = on_gpu(golden_folder("qwen3"), lora={"rank": 4, "alpha": 8.0})
        base = call(learner, "forward", {"network": "base"}, WAVE)[1]["logprob"]
        train(learner)
        self.assert_same(call(learner, "forward", {"network": "base"}, WAVE)[1]["logprob"], base)
        self.assertFalse(torch.equal(call(learner, "forward", {"network": "policy"}, WAVE)[1]["logprob"], base))


if __name__ == "__main__":
    unittest.main()
