"""Trained weights in f32, their gradients in f32, and the weights that the decoder computes with.

If the decoder computes in f32, its parameters are the weights and autograd's gradients the gradients.

If it computes in bf16, its parameters are a rounded copy, refreshed after each step, beside f32 weights that only the
optimizer changes. Each parameter's bf16 gradient is added to an f32 one as soon as autograd has it, and freed. So
gradients are summed over waves in f32, and there is no second set of them. Per trained parameter this takes 18 bytes:
f32 weight, gradient and two moments, and the copy. `torch.autocast` would take the same (it casts weights, and caches
the casts for one pass), but leaves norms and residual sums to its list of operations, adds a cast per weight to every
pass, and a recomputed layer casts again outside its cache.
"""

import torch

from .device import free_memory


class TrainedWeights:
    """The trained parameters of a network, by their names in its weights' file, each tensor once.

    `masters[name]` is the f32 weight. Code that changes one calls `refresh` afterwards.
    """

    def __init__(self, parameters, exact=None):
        """Of parameters by name; `exact` has the f32 values of those that are held rounded."""
        self.parameters = parameters
        self.masters = {}
        self._gradients = {}
        for name, parameter in parameters.items():
            parameter.requires_grad_(True)
            if parameter.dtype == torch.float32:
                self.masters[name] = parameter.data
            else:
                self.masters[name] = exact[name] if exact else parameter.data.float()
                parameter.register_post_accumulate_grad_hook(self._adder(name))

    def note_backward(self):
        """A backward pass has added to the gradients."""

    def gather_gradients(self):
        """Completes the gradients, before they are read."""

    def total(self, value):
        """A sum over all trained weights, of which this process has summed its own."""
        return value

    def shape(self, name):
        """The shape of a trained weight."""
        return self.masters[name].shape

    def full(self, name, part):
        """A whole weight or moment, from this process's part."""
        return part

    def rows(self, name):
        """The rows of a weight that this process holds."""
        return slice(None)

    def _adder(self, name):
        def add(parameter):
            gradient, parameter.grad = parameter.grad, None
            if name in self._gradients:
                self._gradients[name].add_(gradient)
            else:
                self._gradients[name] = gradient.float()

        return add

    @property
    def num_parameters(self):
        """Number of trained numbers."""
        return sum(master.numel() for master in self.masters.values())

    def gradient(self, name):
        """The accumulated f32 gradient; `None` if there is none, which counts as zeros."""
        return self._gradients.get(name, self.parameters[name].grad)

    def clear_gradients(self):
        """Drops all gradients and frees them."""
        self._gradients.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def refresh(self):
        """Rounds the f32 weights into the parameters, if those are a copy."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if parameter.dtype != torch.float32:
                    parameter.copy_(self.masters[name])

    def copy_masters(self):
        """Copies of the f32 weights in the host's memory."""
        return set_aside(self.masters)

    def copy_parameters(self, masters):
        """Copies of the weights that passes compute with, for `swapped`; `masters` is a fresh result of `copy_masters`.

        On a GPU it is a copy there, unless that would take more than a quarter of the free memory.
        """
        parameters = self.parameters.values()
        needed = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        if not all(parameter.is_cuda for parameter in parameters) or 4 * needed > free_memory():
            return masters
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def set_masters(self, masters):
        """Restores a copy of `copy_masters`."""
        for name, master in self.masters.items():
            master.copy_(masters[name])
        self.refresh()

    def swapped(self, parameters):
        """In this context the decoder computes with other weights; a graph held outside stays valid."""
        return _Swapped(self.parameters, parameters)


class _Swapped:
    def __init__(self, parameters, others):
        self.parameters, self.others, self.own = parameters, others, {}

    def __enter__(self):
        for name, parameter in self.parameters.items():
            # Another tensor under the same parameter: a change in place would invalidate held graphs.
            self.own[name] = parameter.data
            parameter.data = self.others[name].to(parameter.device, parameter.dtype)

    def __exit__(self, *_):
        for name, parameter in self.parameters.items():
            parameter.data = self.own[name]


def set_aside(tensors):
    """Copies of tensors by name, in the host's memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def first_not_finite(tensors):
    """Name of the first of these tensors that has a number that is not finite, or `None`.

    Reads minima and maxima, in which NaN propagates: no temporary of a tensor's size, and one wait for the device.
    """
    names, extremes = [], []
    for name, tensor in tensors:
        if tensor.numel():
            names.append(name)
            extremes.append(torch.stack(torch.aminmax(tensor.detach())).float())
    if not names:
        return None
    broken = (~torch.stack(extremes).isfinite()).any(1).tolist()
    return next((name for name, is_broken in zip(names, broken, strict=True) if is_broken), None)
