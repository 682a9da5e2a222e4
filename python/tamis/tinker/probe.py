"""Measures what a server does and does not document, on a scratch model with a few made-up sequences.

Five things, in about twenty calls: how far log-probabilities of samples are from those of passes; what derivatives are
divided by, from norms of gradients at learning rate 0; whether one derivative a token gives the right gradient, in one
sequence and in two; whether a step changes the loss as much as its gradient predicts, which shows a constant factor;
and whether `grad_clip_norm` works, by a step with a tiny one.
"""

import contextlib
from array import array
from dataclasses import dataclass

from ..learner.messages import LearnerError, Refused
from . import reduction
from .api import Session
from .columns import Sequence
from .reduction import Reduction
from .sampling import sample
from .training import Adam, Derivatives, Model, grad_norm

# Ids that every vocabulary has. Targets: 4, 10 and 16.
_SHORT = Sequence(array("i", [1, 2, 3]), array("i", [4, 5]))
_PADDED = Sequence(_SHORT.prompt, array("i", [4, 5, 6, 7, 8, 9, 1, 2]))
_BESIDE = Sequence(array("i", [9]), array("i", [8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7, 6, 5, 4, 3, 2]))
_DERIVATIVES = (-1.5, 0.5)
_ADAM = Adam(0.9, 0.95, 1e-8, 0.0)
# The decrease of a sequence's loss by one small step of gradient descent, in nats: small enough to be linear.
_GAIN = 0.25
# Number of such steps, because 16 bits may round by as much as one.
_NUM_GAINS = 4
# A decrease that is this many times less or more than predicted is a factor of the server's own.
_MOST_FACTOR = 2.0
# Relative size that counts as zero.
_NOTHING = 1e-3
# With an epsilon of this many gradient norms, AdamW is plain gradient descent.
_PLAIN = 1e3
# A visible step: AdamW moves each weight by about this much, whatever the gradient.
_LEARNING_RATE = 0.02
# A gradient of this norm is negligible beside AdamW's epsilon.
_TINY_NORM = 1e-18
# Least change of a log-probability, in nats, by a step.
_MOVED = 1e-3
# Log-probabilities that differ by more were computed in 16 bits.
SAME_LOGPROBS = 1e-4


@dataclass(frozen=True)
class Findings:
    """The results; `difference` is between log-probabilities of samples and of passes, in nats."""

    reduction: Reduction
    clips: bool
    difference: float

    def describe(self):
        """Lines for a log."""
        return [
            f"probe: the server takes {self.reduction.name}, and derivatives are multiplied by that divisor",
            f"probe: the server {'clips' if self.clips else 'does not clip'} gradients (grad_clip_norm)",
            f"probe: log-probabilities of samples and of passes differ by {self.difference:.1e} at most",
        ]


def probe(api, base_model, rank, seed):
    """`Findings` about a server. Raises `Refused` if its gradient cannot be corrected."""
    model = Model(Session(api), base_model, rank, seed)
    try:
        findings = _probe(model, base_model)
    except BaseException:
        model.leave()
        raise
    with contextlib.suppress(LearnerError):
        model.unload()
    return findings


def _probe(model, base_model):
    difference = _difference(model, base_model)
    measure = _Measure(model)
    once = [[measure.real(_SHORT)]]
    steps = [
        once,
        [[measure.real(_SHORT), measure.real(_SHORT)]],
        [[measure.real(_PADDED)]],
        [[measure.real(_SHORT), measure.other(_BESIDE)]],
        [[measure.real(_SHORT)], [measure.real(_SHORT)]],
    ]
    norms = [measure.norm(step) for step in steps]
    unit = norms[0]
    found = reduction.find([
        ([[(one.sequence.num_targets, not one.is_zero) for one in call] for call in step], norm)
        for step, norm in zip(steps, norms, strict=True)
    ])  # fmt: skip
    names = "twice in a call", "with targets without an advantage", "beside a sequence without any", "in two calls"
    measured = ", ".join(f"{name} {norm / unit:.3f}" for name, norm in zip(names, norms[1:], strict=True))
    refusal = f"{model.api.url} divides derivatives by an unknown number"
    if found is None:
        hint = "such a server would train by another gradient than the loss's: docs/learners.md lists known servers"
        raise Refused(f"{refusal}: in multiples of one sequence's gradient it is {measured}", hint)
    # One derivative a token: three times each must give three times the gradient, and two sequences what each gives.
    thrice = measure.norm([[measure.real(_SHORT, 3.0)]]) / unit
    parts = [measure.real(_SHORT, keep=place) for place in range(len(_DERIVATIVES))]
    split = measure.norm([parts], found.divisor) / measure.norm(once, found.divisor)
    if not reduction.is_near(thrice, 3.0) or not reduction.is_near(split, 1.0):
        message = f"{refusal}: the gradient of three times the derivatives is {thrice:.3f} of theirs, "
        raise Refused(f"{message}and of the derivatives in two sequences {split:.3f} of those in one", None)
    # Ratios do not show a constant. This is the first step that moves weights, so they are as they were made.
    gained = measure.gain(found.divisor, measure.norm(once, found.divisor))
    if abs(gained) < _NOTHING:
        message = f"a step down the gradient changes no log-probability at {model.api.url}"
        raise Refused(message, "does the server train adapters of the base model?")
    if not 1.0 / _MOST_FACTOR < gained < _MOST_FACTOR:
        message = f"{refusal}: it takes {found.name}, and a step changes the loss {gained:.3g} times"
        hint = "does it divide by a constant besides, or clip by a norm of its own?"
        raise Refused(f"{message} as much as the norm of its gradient predicts", hint)
    return Findings(found, _clips(model), difference)


def _difference(model, base_model):
    """How far log-probabilities of a sample are from those of a pass; a new adapter changes nothing."""
    prompt, session, api = _SHORT.prompt, model.session, model.api
    values = {"session_id": session.id, "sampling_session_seq_id": session.next_sampler(), "base_model": base_model}
    answer = api.call("create_sampling_session", {**values, "type": "create_sampling_session"})
    sampled = sample(
        api, answer.get("sampling_session_id"), 0, prompt, {"max_tokens": 8, "seed": 1, "temperature": 1.0}
    )
    if not sampled.tokens:
        return 0.0
    (logprobs,) = model.forward([Sequence(prompt, sampled.tokens)])
    return _largest(logprobs, sampled.logprobs)


def _largest(some, others):
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _clips(model):
    """Whether a step with a nearly vanishing clipped norm changes nothing."""

    def moves(largest):
        """Whether a step changes log-probabilities by more than a repeated pass does."""
        before, again = model.forward([_SHORT, _SHORT])
        # Without moments of earlier steps.
        adam = Adam(0.0, 0.0, _ADAM.epsilon, 0.0, largest)
        derivatives = Derivatives(_SHORT, before, array("f", _DERIVATIVES))
        model.step([[derivatives]], adam, _LEARNING_RATE, lambda own, call, step: 1.0)
        (after,) = model.forward([_SHORT])
        return _largest(after, before) > max(_MOVED, 4.0 * _largest(again, before))

    if moves(_TINY_NORM):
        return False
    if not moves(None):
        message = f"a step at learning rate {_LEARNING_RATE} changes no log-probability at {model.api.url}"
        raise Refused(message, "does the server train adapters of the base model?")
    return True


def _loss(logprobs):
    """The loss whose derivatives are `_DERIVATIVES`."""
    return sum(own * one for own, one in zip(_DERIVATIVES, logprobs, strict=True))


class _Measure:
    """Norms of gradients at learning rate 0."""

    def __init__(self, model):
        self.model = model
        sequences = _SHORT, _PADDED, _BESIDE
        self.logprobs = dict(zip(map(id, sequences), model.forward(sequences), strict=True))

    def real(self, sequence, factor=1.0, keep=None):
        """A sequence with derivatives, or with only the one at `keep`; further targets have 0."""
        own = [factor * one * (keep in (None, place)) for place, one in enumerate(_DERIVATIVES)]
        return self._derivatives(sequence, own)

    def other(self, sequence):
        """A sequence without derivatives."""
        return self._derivatives(sequence, [])

    def _derivatives(self, sequence, own):
        padded = array("f", own + [0.0] * (len(sequence.completion) - len(own)))
        return Derivatives(sequence, self.logprobs[id(sequence)], padded)

    def norm(self, calls, divisor=lambda own, call, step: 1.0):
        """The norm of a step's gradient."""
        return self._step(calls, _ADAM, 0.0, divisor)

    def gain(self, divisor, norm):
        """By which factor the loss of a sequence falls more than its gradient norms predict, in a few steps of plain
        gradient descent; `norm`: of the first.
        """
        first, expected = self.logprobs[id(_SHORT)], 0.0
        for _ in range(_NUM_GAINS):
            adam, rate = Adam(0.0, 0.0, _PLAIN * norm, 0.0), _GAIN / norm**2
            norm = self._step([[self.real(_SHORT)]], adam, rate * adam.epsilon, divisor)
            expected += rate * norm**2
            (last,) = self.model.forward([_SHORT])
            self.logprobs[id(_SHORT)] = last
            if abs(_loss(last) - _loss(first)) > _MOST_FACTOR * _NUM_GAINS * _GAIN:
                # A step that went much too far: later ones show nothing.
                break
        return (_loss(first) - _loss(last)) / expected

    def _step(self, calls, adam, learning_rate, divisor):
        norm = grad_norm(self.model.step(calls, adam, learning_rate, divisor))
        if norm is None:
            hint = "without it neither the server's reduction nor a run's gradients can be looked at"
            raise Refused(f"{self.model.api.url} gives no `grad_norm` of an optimizer step", hint)
        if not norm > 0.0:
            raise Refused(f"{self.model.api.url} gives {norm} as the norm of a gradient that is not 0", None)
        return norm
