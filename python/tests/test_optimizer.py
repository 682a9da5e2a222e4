"""AdamW against torch's and against the formula of docs/learner-protocol.md."""

import math
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import DEVICE, Case

import torch
from tamis.learner.optimizer import AdamW, AdamWSettings
from tamis.learner.weights import TrainedWeights, first_not_finite


def settings(**more):
    values = dict(
        beta1=0.9, beta2=0.99, epsilon=1e-6, weight_decay=0.1, decay_norms_and_biases=True, max_grad_norm=None
    )
    return AdamWSettings(**{**values, **more})


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = {"matrix": (5, 7), "bias": (7,), "other": (3, 2, 4)}
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(DEVICE, dtype)) for name, shape in shapes.items()
    }


def gradient(name, step):
    generator = torch.Generator().manual_seed(100 * step + len(name))
    shape = dict(matrix=(5, 7), bias=(7,), other=(3, 2, 4))[name]
    return torch.randn(shape, generator=generator).to(DEVICE) * (step + 1)


def give_gradients(weights, step, factor=1.0):
    for name, parameter in weights.parameters.items():
        parameter.grad = gradient(name, step) * factor


class Steps(Case):
    def test_equals_torch(self):
        for clip in (None, 0.5, 1e6):
            weights = TrainedWeights(parameters())
            own = AdamW(weights, settings(max_grad_norm=clip))
            theirs = parameters()
            reference = torch.optim.AdamW(
                theirs.values(), lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, foreach=False
            )
            for step in range(5):
                give_gradients(weights, step)
                for name, parameter in theirs.items():
                    parameter.grad = gradient(name, step)
                expected = torch.nn.utils.clip_grad_norm_(theirs.values(), clip or math.inf).item()
                reference.step()
                norm, skipped = own.step(0.01)
                self.assertFalse(skipped)
                self.assertAlmostEqual(norm / expected, 1.0, places=6)
                for name in theirs:
                    self.assert_close(weights.masters[name], theirs[name], 1e-6, name)
                    self.assert_close(own.first[name], reference.state[theirs[name]]["exp_avg"], 1e-6, name)
                    self.assert_close(own.second[name], reference.state[theirs[name]]["exp_avg_sq"], 1e-6, name)
            self.assertEqual(own.num_steps, 5)

    def test_equals_the_formula(self):
        weights = TrainedWeights(parameters())
        own = AdamW(weights, settings(decay_norms_and_biases=False, max_grad_norm=2.0))
        exact = {name: master.double() for name, master in weights.masters.items()}
        first = {name: torch.zeros_like(master) for name, master in exact.items()}
        second = {name: torch.zeros_like(master) for name, master in exact.items()}
        for t in range(1, 4):
            give_gradients(weights, t)
            gradients = {name: gradient(name, t).double() for name in exact}
            norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
            scale = min(1.0, 2.0 / (norm + 1e-6))
            a, w = 0.03 / t, 0.1
            for name, g in gradients.items():
                g = g * scale
                first[name] += (1 - 0.9) * (g - first[name])
                second[name] = 0.99 * second[name] + (1 - 0.99) * g * g
                decay = 0.0 if exact[name].dim() == 1 else w
                denominator = second[name].sqrt() / math.sqrt(1 - 0.99**t) + 1e-6
                exact[name] = exact[name] * (1 - a * decay) - a / (1 - 0.9**t) * first[name] / denominator
            found, skipped = own.step(a)
            self.assertFalse(skipped)
            self.assertAlmostEqual(found, norm, delta=1e-6 * norm)
            for name in exact:
                self.assert_close(weights.masters[name], exact[name], 1e-6, name)
                self.assertIsNone(weights.gradient(name))

    def test_a_gradient_that_is_not_finite_changes_nothing_but_is_cleared(self):
        for broken in (math.nan, math.inf, -math.inf):
            weights = TrainedWeights(parameters())
            own = AdamW(weights, settings())
            give_gradients(weights, 0)
            own.step(0.1)
            before, state = weights.copy_masters(), own.copy_state()
            give_gradients(weights, 1)
            weights.parameters["other"].grad[1, 1, 3] = broken
            norm, skipped = own.step(0.1)
            self.assertTrue(skipped)
            self.assertFalse(math.isfinite(norm))
            self.assertEqual(own.num_steps, 1)
            for name in before:
                self.assert_same(weights.masters[name], before[name])
                self.assert_same(own.first[name].view(-1), state[0][name][0])
                self.assert_same(own.second[name].view(-1), state[1][name][0])
                self.assertIsNone(weights.gradient(name))

    def test_a_missing_gradient_counts_as_zeros(self):
        weights, others = TrainedWeights(parameters()), TrainedWeights(parameters())
        own, other = AdamW(weights, settings()), AdamW(others, settings())
        for step in range(2):
            give_gradients(weights, step)
            give_gradients(others, step)
            if step == 1:
                weights.parameters["bias"].grad = None
                others.parameters["bias"].grad = torch.zeros(7, device=DEVICE)
            own.step(0.1), other.step(0.1)
        for name in weights.masters:
            self.assert_same(weights.masters[name], others.masters[name])
        self.assertEqual(own.grad_norm(), 0.0)

    def test_a_small_norm_is_clipped_as_torch_does(self):
        weights = TrainedWeights({"one": torch.nn.Parameter(torch.zeros(1, device=DEVICE))})
        weights.parameters["one"].grad = torch.tensor([1e-6], device=DEVICE)
        own = AdamW(weights, settings(max_grad_norm=1e-6))
        own.step(1.0)
        # Scaled by 1e-6 / (1e-6 + 1e-6).
        self.assert_close(own.first["one"], [0.1 * 0.5e-6], 1e-5)

    def test_the_norm_holds_where_f32_would_not(self):
        weights = TrainedWeights({"huge": torch.nn.Parameter(torch.zeros(4, device=DEVICE))})
        weights.parameters["huge"].grad = torch.full((4,), 1e30, device=DEVICE)
        self.assertAlmostEqual(AdamW(weights, settings()).grad_norm() / 2e30, 1.0, places=6)


class Fused(Steps):
    """PyTorch's fused kernel, which is used on a GPU, also exists for CPUs."""

    def setUp(self):
        self.enterContext(unittest.mock.patch.object(AdamW, "_step_by_part", AdamW._step_fused))


class Rounded(Case):
    """Parameters in bf16 beside f32 weights."""

    def test_gradients_add_up_in_f32(self):
        weights = TrainedWeights(parameters(torch.bfloat16))
        total = torch.zeros(5, 7, device=DEVICE)
        for step in range(20):
            # A large gradient first: in bf16 the small ones after it would be lost.
            given = (gradient("matrix", 0) * (1000.0 if step == 0 else 1.0)).bfloat16()
            (weights.parameters["matrix"] * given).sum().backward()
            total += given.float()
            self.assertIsNone(weights.parameters["matrix"].grad)
        self.assert_same(weights.gradient("matrix"), total)
        self.assertEqual(weights.gradient("matrix").dtype, torch.float32)

    def test_small_steps_are_not_lost(self):
        weights = TrainedWeights({"one": torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16, device=DEVICE))})
        own = AdamW(weights, settings(weight_decay=0.0))
        for _ in range(100):
            weights.parameters["one"].sum().backward()
            own.step(1e-4)
        self.assert_close(weights.masters["one"], [0.99], 1e-4)
        self.assert_same(weights.parameters["one"].data, weights.masters["one"].bfloat16())

    def test_exact_values_are_taken(self):
        exact = {"one": torch.tensor([1.001], device=DEVICE)}
        weights = TrainedWeights({"one": torch.nn.Parameter(exact["one"].bfloat16())}, exact)
        self.assert_same(weights.masters["one"], torch.tensor([1.001]))


class NotFinite(Case):
    def test_names_the_first(self):
        tensors = [
            ("empty", torch.zeros(0)),
            ("good", torch.full((3,), 3e38)),
            ("nan", torch.tensor([1.0, math.nan])),
            ("inf", torch.tensor([math.inf])),
        ]
        self.assertEqual(first_not_finite(tensors), "nan")
        self.assertEqual(first_not_finite(tensors[3:]), "inf")
        self.assertIsNone(first_not_finite(tensors[:2]))
        self.assertIsNone(first_not_finite([]))


if __name__ == "__main__":
    unittest.main()
