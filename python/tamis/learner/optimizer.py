"""AdamW (Loshchilov and Hutter 2019) with clipping by the global norm, as in the native engine's `adamw.rs`.

With gradient g after clipping, moments m and v, step count t from 1, learning rate a, decay w:

    m += (1 - beta1) (g - m)
    v  = beta2 v + (1 - beta2) g g
    weight = weight (1 - a w) - a / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

Weights and gradients are f32; the norm is summed in f64. Moments are f32, or have 8 bits, and may wait in the host's
memory (`moments`). Steps go part by part of each tensor, so that temporaries are small and moments on the host stream
through the device. On a GPU that holds all moments in f32, one kernel of PyTorch does all of it (`_step_fused`).
"""

import math
from dataclasses import dataclass

import torch

from .moments import Moments

# Numbers that are squared in f64 at a time: bounds the temporary to 128 MB.
_CHUNK = 1 << 24
# Numbers of a tensor that take a step at a time.
_PART = 1 << 24


@dataclass(frozen=True)
class AdamWSettings:
    """Constants of the optimizer; `max_grad_norm` of `None` does not clip."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    decay_norms_and_biases: bool
    max_grad_norm: float | None
    # How moments are held.
    in_8_bits: bool = False
    on_host: bool = False

    @classmethod
    def read(cls, settings, in_8_bits=False, on_host=False):
        """From the object `optimizer` of a call."""
        made = cls(
            beta1=settings.number("beta1", least=0.0, below=1.0),
            beta2=settings.number("beta2", least=0.0, below=1.0),
            epsilon=settings.number("epsilon", least=0.0),
            weight_decay=settings.number("weight_decay", least=0.0),
            decay_norms_and_biases=settings.flag("decay_norms_and_biases"),
            max_grad_norm=settings.number("max_grad_norm", None, above=0.0),
            in_8_bits=in_8_bits,
            on_host=on_host,
        )
        settings.finish()
        return made


class AdamW:
    """Moments and step count of trained weights."""

    def __init__(self, weights, settings):
        self.weights = weights
        self.settings = settings
        self.first = Moments(weights.masters, False, settings.in_8_bits, settings.on_host)
        self.second = Moments(weights.masters, True, settings.in_8_bits, settings.on_host)
        self.num_steps = 0

    def reset(self):
        """Sets moments and step count to zero."""
        for moments in (self.first, self.second):
            moments.zero()
        self.num_steps = 0

    def grad_norm(self):
        """Global norm of the gradients, which are kept; not finite if one of their numbers is not."""
        self.weights.gather_gradients()
        squares = [
            part.double().square_().sum()
            for name in self.weights.masters
            if (gradient := self.weights.gradient(name)) is not None
            for part in gradient.reshape(-1).split(_CHUNK)
        ]
        # The largest f32 squared is far from the end of f64, so finite numbers have a finite norm.
        return math.sqrt(self.weights.total(float(torch.stack(squares).sum()) if squares else 0.0))

    @torch.no_grad()
    def step(self, learning_rate):
        """Clips, steps and clears the gradient. Returns `(norm before clipping, skipped)`.

        A gradient that is not finite is only cleared. A missing gradient counts as zeros.
        """
        norm = self.grad_norm()
        if not math.isfinite(norm):
            self.weights.clear_gradients()
            return norm, True
        own = self.settings
        clip = 1.0 if own.max_grad_norm is None else min(1.0, own.max_grad_norm / (norm + 1e-6))
        self.num_steps += 1
        is_fused = all(master.is_cuda for master in self.weights.masters.values())
        if is_fused and self.first.are_plain and self.second.are_plain:
            self._step_fused(learning_rate, clip)
        else:
            self._step_by_part(learning_rate, clip)
        self.weights.clear_gradients()
        self.weights.refresh()
        return norm, False

    def _decays(self, master):
        return self.settings.weight_decay and (self.settings.decay_norms_and_biases or master.dim() > 1)

    def _step_by_part(self, learning_rate, clip):
        own = self.settings
        step_size = learning_rate / (1.0 - own.beta1**self.num_steps)
        root = math.sqrt(1.0 - own.beta2**self.num_steps)
        for name, master in self.weights.masters.items():
            gradient = self.weights.gradient(name)
            decay = 1.0 - learning_rate * own.weight_decay if self._decays(master) else 1.0
            flat = master.reshape(-1)
            slopes = torch.zeros_like(flat) if gradient is None else gradient.reshape(-1)
            for begin in range(0, flat.numel(), _PART):
                part = slice(begin, min(begin + _PART, flat.numel()))
                weight, slope = flat[part], slopes[part]
                if clip != 1.0:
                    slope.mul_(clip)
                first, second = (moments.read(name, part.start, part.stop) for moments in (self.first, self.second))
                first.lerp_(slope, 1.0 - own.beta1)
                second.mul_(own.beta2).addcmul_(slope, slope, value=1.0 - own.beta2)
                if decay != 1.0:
                    weight.mul_(decay)
                # The gradient is no longer needed: its memory holds the denominator.
                denominator = torch.sqrt(second, out=slope).div_(root).add_(own.epsilon)
                weight.addcdiv_(first, denominator, value=-step_size)
                self.first.write(name, first, part.start, part.stop)
                self.second.write(name, second, part.start, part.stop)
            if flat.data_ptr() != master.data_ptr():
                master.copy_(flat.view_as(master))
        self.first.wait()
        self.second.wait()

    def _step_fused(self, learning_rate, clip):
        own, masters = self.settings, self.weights.masters
        device = next(iter(masters.values())).device
        # Called as in `torch.optim.AdamW(fused=True)`; a gradient is divided by the scale.
        num_steps, scale = (torch.tensor(float(value), device=device) for value in (self.num_steps, 1.0 / clip))
        for decays in (True, False):
            # A rank may hold nothing of small tensors.
            names = [name for name, one in masters.items() if bool(self._decays(one)) == decays and one.numel()]
            if not names:
                continue
            gradients = [self.weights.gradient(name) for name in names]
            gradients = [
                torch.zeros_like(masters[name]) if gradient is None else gradient
                for name, gradient in zip(names, gradients, strict=True)
            ]
            torch._fused_adamw_(
                [masters[name] for name in names], gradients, [self.first[name] for name in names],
                [self.second[name] for name in names], [], [num_steps] * len(names), lr=learning_rate, beta1=own.beta1,
                beta2=own.beta2, weight_decay=own.weight_decay if decays else 0.0, eps=own.epsilon, amsgrad=False,
                maximize=False, grad_scale=scale, found_inf=None,
            )  # fmt: skip

    def copy_state(self):
        """Copies of moments and step count in the host's memory."""
        return self.first.copy(), self.second.copy(), self.num_steps

    def set_state(self, state):
        """Restores a copy of `copy_state`."""
        first, second, self.num_steps = state
        self.first.restore(first)
        self.second.restore(second)
