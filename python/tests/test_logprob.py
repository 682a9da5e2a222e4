"""Chunked log-probabilities and entropies against autograd over whole logits in f64."""

import itertools
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import DEVICE, Case

import torch
from tamis.learner.logprob import logprob_and_entropy, top_tokens


def whole(hidden, weight, bias, targets, scale=1.0, cap=None, factor=1.0):
    """The same with the logits of all tokens at once, in the type of its inputs."""
    z = hidden @ weight.t()
    if bias is not None:
        z = z + bias
    z = z * scale
    if cap is not None:
        z = cap * torch.tanh(z / cap)
    log_p = torch.log_softmax(z * factor, 1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)


def draw(seed, num_tokens=23, width=16, vocab_size=37, size=1.0, has_bias=True, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(num_tokens, width, generator=generator) * size).to(dtype)
    weight = torch.randn(vocab_size, width, generator=generator).to(dtype)
    bias = torch.randn(vocab_size, generator=generator).to(dtype) if has_bias else None
    targets = torch.randint(vocab_size, (num_tokens,), generator=generator)
    derivatives = torch.randn(2, num_tokens, generator=generator)
    return [one if one is None else one.to(DEVICE) for one in (hidden, weight, bias, targets, derivatives)]


def gradients(function, inputs, derivatives):
    """Outputs, and gradients by hidden states, weights and bias, if `derivatives` are those of the outputs."""
    inputs = [one if one is None else one.detach().clone().requires_grad_() for one in inputs]
    outputs = function(*inputs)
    pairs = [(output, given.to(output.dtype)) for output, given in zip(outputs, derivatives) if given is not None]
    torch.autograd.backward(*zip(*pairs))
    return outputs, [one.grad for one in inputs if one is not None]


class LogProb(Case):
    def check(self, drawn, chunk, derivatives, tolerance=1e-5, **constants):
        hidden, weight, bias, targets, _ = drawn
        inputs = [hidden, weight, bias]
        found = gradients(
            lambda h, w, b: logprob_and_entropy(h, w, b, targets, chunk=chunk, **constants), inputs, derivatives
        )
        exact = [one if one is None else one.double() for one in inputs]
        expected = gradients(lambda h, w, b: whole(h, w, b, targets, **constants), exact, derivatives)
        for name, one, other in zip(("logprob", "entropy"), found[0], expected[0]):
            self.assertEqual(one.dtype, torch.float32)
            self.assert_close(one, other, tolerance, name)
        for name, one, other in zip(("hidden", "weight", "bias"), found[1], expected[1]):
            self.assert_close(one, other, tolerance, f"gradient by {name}")

    def test_equals_whole_logits(self):
        settings = itertools.product(
            (1, 5, 23, 1000),
            (True, False),
            (dict(), dict(factor=1 / 0.7), dict(factor=0.5), dict(scale=0.3), dict(cap=4.0, scale=2.0, factor=1.3)),
        )
        for seed, (chunk, has_bias, constants) in enumerate(settings):
            with self.subTest(chunk=chunk, has_bias=has_bias, **constants):
                drawn = draw(seed, has_bias=has_bias)
                self.check(drawn, chunk, drawn[-1], **constants)

    def test_candidates_have_their_log_probabilities_and_gradient(self):
        for seed, (chunk, constants) in enumerate(
            itertools.product((1, 5, 1000), (dict(), dict(factor=1 / 0.7), dict(cap=4.0, scale=2.0, factor=1.3)))
        ):
            for alone in (False, True):
                with self.subTest(chunk=chunk, alone=alone, **constants):
                    hidden, weight, bias, targets, derivatives = draw(seed, has_bias=True)
                    generator = torch.Generator().manual_seed(seed)
                    candidates = torch.randint(weight.shape[0], (targets.numel(), 4), generator=generator)
                    by_candidates = torch.randn(candidates.shape, generator=generator)
                    given = [None, None, by_candidates] if alone else [*derivatives, by_candidates]
                    inputs = [hidden, weight, bias]
                    found = gradients(
                        lambda h, w, b: logprob_and_entropy(
                            h, w, b, targets, candidates=candidates, chunk=chunk, **constants
                        ),
                        inputs,
                        given,
                    )

                    def exactly(h, w, b):
                        columns = whole(h, w, b, targets, **constants)
                        others = [whole(h, w, b, one, **constants)[0] for one in candidates.t()]
                        return *columns, torch.stack(others, 1)

                    expected = gradients(exactly, [one.double() for one in inputs], given)
                    for name, one, other in zip(("logprob", "entropy", "candidates"), found[0], expected[0]):
                        self.assert_close(one, other, 1e-5, name)
                    for name, one, other in zip(("hidden", "weight", "bias"), found[1], expected[1]):
                        self.assert_close(one, other, 1e-5, f"gradient by {name}")

    def test_the_likeliest_tokens(self):
        for chunk, factor in ((3, 1.0), (1000, 1.5)):
            hidden, weight, bias, targets, _ = draw(3, has_bias=True)
            logprob, ids, of_ids = top_tokens(hidden, weight, bias, targets, 5, factor=factor, chunk=chunk)
            logits = torch.nn.functional.linear(hidden.double(), weight.double(), bias.double()) * factor
            exact = logits.log_softmax(1)
            self.assert_close(logprob, exact.gather(1, targets[:, None])[:, 0], 1e-5, "logprob")
            self.assert_close(of_ids, exact.topk(5, 1).values, 1e-5, "likeliest")
            self.assert_close(exact.gather(1, ids), exact.topk(5, 1).values, 1e-5, "ids")

    def test_each_derivative_alone(self):
        drawn = draw(7)
        logprob, entropy = drawn[-1]
        self.check(drawn, 6, (logprob, None), factor=1.25, cap=3.0)
        self.check(drawn, 6, (None, entropy), factor=1.25, cap=3.0)

    def test_hand_computed(self):
        # Two tokens with logits 0 and log 3: probabilities 1/4 and 3/4.
        hidden = torch.tensor([[1.0]], device=DEVICE)
        weight = torch.tensor([[0.0], [1.0986122886681098]], device=DEVICE)
        logprob, entropy = logprob_and_entropy(hidden, weight, None, torch.tensor([1], device=DEVICE))
        self.assertAlmostEqual(logprob.item(), -0.2876820724517809, places=6)
        self.assertAlmostEqual(entropy.item(), 0.5623351446188083, places=6)
        # At twice the logits: 1/10 and 9/10.
        logprob, entropy = logprob_and_entropy(hidden, weight, None, torch.tensor([0], device=DEVICE), factor=2.0)
        self.assertAlmostEqual(logprob.item(), -2.302585092994046, places=6)
        self.assertAlmostEqual(entropy.item(), 0.3250829733914482, places=6)

    def test_small_entropy_keeps_its_digits(self):
        # One token has all but about 1e-9 of the probability, at logits of a thousand.
        hidden = torch.tensor([[1.0]], device=DEVICE)
        weight = torch.tensor([[1000.0], [980.0], [979.0]], device=DEVICE)
        targets = torch.tensor([0], device=DEVICE)
        _, entropy = logprob_and_entropy(hidden, weight, None, targets)
        _, expected = whole(hidden.double(), weight.double(), None, targets)
        self.assertGreater(expected.item(), 1e-8)
        self.assertLess(abs(entropy.item() / expected.item() - 1), 0.1)
        self.assertTrue(torch.isfinite(entropy).all())

    def test_bf16_adds_up_in_f32(self):
        drawn = draw(3, num_tokens=400, width=64, vocab_size=300, size=0.3, has_bias=False, dtype=torch.bfloat16)
        # The outputs see no rounding but that of the inputs; gradients that of the logits' derivatives, and their own.
        hidden, weight, _, targets, derivatives = drawn
        outputs = logprob_and_entropy(hidden, weight, None, targets, chunk=7)
        for one, other in zip(outputs, whole(hidden.double(), weight.double(), None, targets)):
            self.assert_close(one, other, 1e-5)
        self.check(drawn, 7, derivatives, tolerance=5e-3)

    def test_frozen_head(self):
        hidden, weight, _, targets, derivatives = draw(9)
        hidden.requires_grad_()
        outputs = logprob_and_entropy(hidden, weight, None, targets, chunk=4)
        torch.autograd.backward(outputs, list(derivatives))
        self.assertIsNotNone(hidden.grad)
        self.assertIsNone(weight.grad)


if __name__ == "__main__":
    unittest.main()
