"""What a server divides the derivatives of a pass by, and the factor that undoes it.

tamis sends one derivative a token; their products with the log-probabilities should be summed. `importance_sampling`
with the log-probabilities of the pass just before and advantages `a` has the gradient of `-sum(a l)`, but servers
divide it: SkyRL's JAX backend by a sequence's targets and by the sequences of the step. With the divisor known, the
advantage of a derivative `d` is `-d` times it.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Relative error of a ratio of two norms: servers compute in 16 bits.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Reduction:
    """A divisor: of a sequence with `own` targets, in a call whose sequences have `call` targets each, of a step whose
    sequences have `step` each.
    """

    name: str
    divisor: Callable

    def share(self, calls):
        """The sum over a step's sequences relative to that of a step in which all are equal and have a gradient.

        `calls`: for each call its sequences as `(targets, is_real)`; those that are not real have no gradient.
        """
        step = [targets for call in calls for targets, _ in call]
        return sum(
            1.0 / self.divisor(targets, [one for one, _ in call], step)
            for call in calls
            for targets, is_real in call
            if is_real
        )


REDUCTIONS = (
    Reduction("the plain sum", lambda own, call, step: 1),
    Reduction("a mean over sequences of means over targets", lambda own, call, step: own * len(step)),
    Reduction("a mean over the sequences of each call of means over targets", lambda own, call, step: own * len(call)),
    Reduction("a mean over all targets", lambda own, call, step: sum(step)),
    Reduction("a mean over the targets of each call", lambda own, call, step: sum(call)),
    Reduction("a mean over sequences", lambda own, call, step: len(step)),
    Reduction("a mean over the sequences of each call", lambda own, call, step: len(call)),
)


def is_near(found, expected):
    """Whether a ratio of norms is the expected one."""
    return abs(found - expected) <= TOLERANCE * expected


def find(measured):
    """The reduction that explains the measurements, or `None`. `measured`: pairs of a step's calls, as in `share`, and
    the norm of its gradient. The first has one sequence.
    """
    (first, unit), *others = measured
    for reduction in REDUCTIONS:
        alone = reduction.share(first)
        if all(is_near(norm / unit, reduction.share(calls) / alone) for calls, norm in others):
            return reduction
    return None
