"""Moments in 8 bits and on the host: what is lost, the bytes, and resumes to the bit."""

import pathlib
import tempfile
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, Case, call, golden_folder, opened, save_tiny, tiny_config

import torch
from test_checkpoint import save, state, train
from test_optimizer import settings
from tamis.learner import optimizer
from tamis.learner.moments import Moments, dequantise, dynamic_map, quantise
from tamis.learner.optimizer import AdamW
from tamis.learner.protocol import RequestError
from tamis.learner.weights import TrainedWeights

SHAPES = {"matrix": (96, 130), "short": (70,), "embedding": (512, 24)}


def parameters(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.1) for name, shape in SHAPES.items()}


def gradient(name, step):
    """Noise around a direction; most rows of the embedding have a gradient only now and then."""
    generator = torch.Generator().manual_seed(len(name))
    mean = torch.randn(SHAPES[name], generator=generator)
    generator.manual_seed(1000 * step + len(name))
    found = mean + torch.randn(SHAPES[name], generator=generator)
    if name == "embedding":
        found *= torch.rand(SHAPES[name][0], 1, generator=generator) < 0.1
        # Rows differ by a factor of thousands.
        found *= 10.0 ** (-4 * torch.arange(SHAPES[name][0])[:, None] / SHAPES[name][0])
    return found * 1e-3


def stepped(num_steps, **more):
    """Weights after some steps, and their optimizer."""
    weights = TrainedWeights(parameters())
    own = AdamW(weights, settings(beta2=0.999, epsilon=1e-8, weight_decay=0.0, **more))
    for step in range(num_steps):
        for name, parameter in weights.parameters.items():
            parameter.grad = gradient(name, step)
        own.step(1e-3)
    return weights, own


class Quantised(Case):
    def test_the_map_is_that_of_bitsandbytes(self):
        for signed in (True, False):
            levels = dynamic_map(signed)
            self.assertEqual((len(levels), int((levels == 0).sum()), float(levels[-1])), (256, 1, 1.0))
            self.assertTrue(bool((levels.diff() > 0).all()))
        # By hand: the lowest decade is from 1e-7 to 1e-6, with one value, its middle, or two of no sign.
        signed, unsigned = dynamic_map(True), dynamic_map(False)
        self.assert_close(signed[signed > 0][0], 0.55e-6, 1e-6)
        self.assert_close(unsigned[1:3], [0.325e-6, 0.775e-6], 1e-6)
        try:
            from bitsandbytes.functional import create_dynamic_map, quantize_blockwise
        except ImportError:
            self.skipTest("bitsandbytes is not installed")
        for signed in (True, False):
            self.assert_close(dynamic_map(signed), create_dynamic_map(signed), 1e-7)
        # Blocks whose largest number is positive have the same codes.
        values = torch.randn(40 * 256, generator=torch.Generator().manual_seed(5)).view(40, 256)
        values[:, 7] = values.abs().amax(1) + 0.01
        codes, scales = quantise(values.view(-1), dynamic_map(True))
        theirs, held = quantize_blockwise(values.view(-1), code=create_dynamic_map(True), blocksize=256)
        self.assert_same(scales, held.absmax)
        self.assertLessEqual((codes.int() - theirs.int()).abs().max(), 1)
        self.assertGreater((codes == theirs).float().mean(), 0.99)

    def test_each_number_is_the_nearest_one(self):
        generator = torch.Generator().manual_seed(2)
        for signed in (True, False):
            levels = dynamic_map(signed)
            values = torch.randn(1000, generator=generator) * 10.0 ** torch.randint(-9, 3, (1000,), generator=generator)
            values = values if signed else values.abs()
            found = dequantise(*quantise(values, levels), levels)
            for begin in range(0, 1000, 256):
                block = values[begin : begin + 256]
                scale = block[block.abs().argmax()]
                nearest = (block[:, None] - scale * levels).abs().amin(1)
                self.assert_close((found[begin : begin + 256] - block).abs(), nearest, 1e-6)
                # The largest number is kept.
                self.assertEqual(found[begin + int(block.abs().argmax())], scale)

    def test_quantised_again_nothing_changes(self):
        generator = torch.Generator().manual_seed(3)
        for exponent in (-44, -38, -30, -20, -8, 0, 15):
            for is_second in (False, True):
                shape = {"one": torch.zeros(5000)}
                held = Moments(shape, is_second, in_8_bits=True)
                values = torch.randn(5000, generator=generator) * 10.0**exponent
                values[300:600] = 0.0
                values[1024] *= -1000.0
                held.put("one", values.square() if is_second else values)
                once = held["one"].clone()
                for _ in range(2):
                    other = Moments(shape, is_second, in_8_bits=True)
                    other.put("one", once)
                    self.assert_same(other["one"], once, f"{exponent} {is_second}")
                if exponent == 0:
                    self.assertGreater(int((once != 0).sum()), 4000)
                    expected = values.square() if is_second else values
                    self.assertLess((once - expected).norm() / expected.norm(), 0.02)

    def test_bytes(self):
        masters = {"large": torch.zeros(1 << 16), "least": torch.zeros(64, 64), "small": torch.zeros(4095)}
        for is_second in (False, True):
            self.assertEqual(Moments(masters, is_second).num_bytes, 4 * ((1 << 16) + 4096 + 4095))
            held = Moments(masters, is_second, in_8_bits=True)
            self.assertEqual(held.num_bytes, (1 << 16) * 260 // 256 + 4096 * 260 // 256 + 4 * 4095)
            self.assertFalse(any(bool(values.any()) for _, values in held.items()))

    def test_an_overflow_is_no_nan(self):
        held = Moments({"one": torch.zeros(4096)}, True, in_8_bits=True)
        held.put("one", torch.full((4096,), torch.inf))
        self.assertTrue(bool(held["one"].isfinite().all()))


class Steps(Case):
    def test_steps_are_near_those_in_f32(self):
        exact, _ = stepped(40)
        found, own = stepped(40, in_8_bits=True)
        begun = {name: one.detach() for name, one in parameters().items()}
        self.assertTrue(own.first.num_bytes < 0.3 * 4 * sum(one.numel() for one in begun.values()))
        for name in SHAPES:
            moved = (exact.masters[name] - begun[name]).norm()
            distance = float((found.masters[name] - exact.masters[name]).norm() / moved)
            # A tensor of fewer than 4,096 numbers is held in f32.
            self.assertLessEqual(distance, 0.0 if name == "short" else 0.02, name)
            self.assertEqual(distance == 0.0, name == "short", name)
            # No single weight jumps.
            largest = (exact.masters[name] - begun[name]).abs().max()
            self.assertLessEqual((found.masters[name] - exact.masters[name]).abs().max(), 0.1 * largest, name)

    def test_on_the_host_and_in_parts_nothing_changes(self):
        for in_8_bits in (False, True):
            expected, own = stepped(4, in_8_bits=in_8_bits)
            with unittest.mock.patch.object(optimizer, "_PART", 1024):
                found, other = stepped(4, in_8_bits=in_8_bits, on_host=True)
            for name in SHAPES:
                self.assert_same(found.masters[name], expected.masters[name], name)
                self.assert_same(other.first[name], own.first[name], name)
                self.assert_same(other.second[name], own.second[name], name)

    def test_kept_and_reset(self):
        weights, own = stepped(3, in_8_bits=True)
        kept, masters = own.copy_state(), weights.copy_masters()
        for _ in range(2):
            for name, parameter in weights.parameters.items():
                parameter.grad = gradient(name, 9)
            own.step(1e-3)
            found = weights.copy_masters()
            own.set_state(kept), weights.set_masters(masters)
        for name, parameter in weights.parameters.items():
            parameter.grad = gradient(name, 9)
        own.step(1e-3)
        for name in SHAPES:
            self.assert_same(weights.masters[name], found[name], name)
        own.reset()
        self.assertFalse(any(bool(values.any()) for held in (own.first, own.second) for _, values in held.items()))


class Resumed(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # Tensors of more than 4,096 numbers.
        save_tiny(self.folder, tiny_config("Qwen3Config", hidden_size=64, intermediate_size=96, vocab_size=200, head_dim=32))

    def learner(self, **options):
        return opened(self.folder, options=options, critic={"optimizer": OPTIMIZER})

    def test_to_the_bit(self):
        for options in (
            {"moments": "8bit"}, {"moments": "8bit", "offload_moments": True, "dtype": "bf16"}, {"offload_moments": True},
        ):  # fmt: skip
            learner = self.learner(**options)
            held = learner._policy.optimizer.first
            self.assertEqual(held.num_bytes < 4 * sum(values.numel() for _, values in held.items()), "moments" in options)
            call(learner, "copy", {"to": "critic"})
            train(learner), train(learner, network="critic")
            with tempfile.TemporaryDirectory() as folder:
                save(learner, folder)
                other = self.learner(**options)
                call(other, "load", {"folder": folder, "content": "checkpoint"})
                # What it holds in 8 bits, any other learner holds in f32.
                plain = self.learner(dtype=options.get("dtype", "f32"))
                call(plain, "load", {"folder": folder, "content": "checkpoint"})
            for network in ("policy", "critic"):
                (expected, _), (held, _) = state(learner, network), state(plain, network)
                for name in expected:
                    self.assert_same(held[name], expected[name], name)
            train(learner), train(other), train(learner, network="critic"), train(other, network="critic")
            for network in ("policy", "critic"):
                (expected, steps), (found, found_steps) = state(learner, network), state(other, network)
                self.assertEqual(steps, found_steps)
                for name in expected:
                    self.assert_same(found[name], expected[name], name)

    def test_an_unknown_format_is_refused(self):
        self.assert_refused(RequestError, "`moments`", opened, golden_folder("qwen3"), options={"moments": "4bit"})


if __name__ == "__main__":
    unittest.main()
