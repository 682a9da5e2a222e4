"""Networks whose weights are shared out over the ranks of a gang, by PyTorch's FSDP2.

Each rank holds a part of every weight, of its gradient and of its moments, in f32. Each layer is a unit; the
rest (embedding, last norm, head) is another. A unit's weights are gathered, in the type of passes, when a
pass reaches it, and freed afterwards. Gradients are summed in f32 and not divided, because a controller's
derivatives are normalised over the whole batch.

Gradients of several waves are summed on each rank first, and over the ranks once before the optimizer needs them, if a
whole f32 gradient has room on every rank; otherwise after every wave.
"""

import contextlib
import copy
import os

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers.modeling_layers import GradientCheckpointingLayer

from .device import free_memory
from .protocol import Refused
from .weights import TrainedWeights

# A whole gradient is held on every rank if it takes at most this share of the free memory.
_SHARE_FOR_GRADIENTS = 0.25


class _Root(torch.nn.Module):
    """What a pass goes through: weights that are in no layer are gathered while it computes `call`."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, call):
        return call()


def shard(network):
    """Shares a network's weights out; passes go through `network.root` from here on.

    Each rank takes its rows of every parameter, from `network.sources` or from the module itself if that has values.
    """
    if network.vision is not None:
        raise Refused("models that see images are trained by one rank", "set `learner.gpus_per_node: 1`")
    options, module = network.options, network.module
    sources = {name: network.sources.get(one) or _holder(one.data) for name, one in module.named_parameters()}
    _empty(network)
    network.skeleton, network.sources = copy.deepcopy(module), {}
    rounded = options.dtype if options.dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=rounded, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    root = _Root(module)
    units = [(one, whole) for name, one in module.named_modules() if name.rpartition(".")[2] in network.kept]
    units += [(one, policy) for one in module.modules() if isinstance(one, GradientCheckpointingLayer)]
    mesh = options.ranks.mesh(options.device.type)
    waits = CPUOffloadPolicy(pin_memory=options.device.type == "cuda") if options.on_host else OffloadPolicy()
    for unit, of_unit in [*units, (root, policy)]:
        fully_shard(unit, mesh=mesh, mp_policy=of_unit, offload_policy=waits, reshard_after_forward=True)
    for unit in root.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)
            # gloo knows only sums.
            unit.set_force_sum_reduction_for_comms(True)
    options.ranks.together(lambda: _fill(module, sources, options))
    # The units read their parameters again.
    root._apply(lambda one: one)
    network.root = root
    parameters = network.trained_parameters()
    network.weights = ShardedWeights(parameters, network) if parameters else None


def _holder(values):
    return lambda begin, end: values[begin:end].clone()


def _empty(network):
    """Keeps only the shapes and types of a module's parameters, and moves buffers to the device."""
    module, options = network.module, network.options
    learns = {id(one) for one in network.trained_parameters().values()}
    emptied = {}
    for name, one in module.named_parameters():
        dtype = one.dtype
        if id(one) in learns:
            # Trained weights are held in f32, and rounded when they are gathered.
            dtype = torch.float32
        elif options.dtype != torch.float32 and not network.keeps(name):
            dtype = options.dtype
        emptied[id(one)] = torch.nn.Parameter(torch.empty(one.shape, dtype=dtype, device="meta"), one.requires_grad)
    _replace(module, emptied)
    for one in module.modules():
        for name, buffer in one._buffers.items():
            if buffer is not None:
                one._buffers[name] = buffer.to(options.device)


def _replace(module, parameters):
    """Replaces parameters, by their `id`."""
    for one in module.modules():
        for name, parameter in one._parameters.items():
            if parameter is not None:
                one._parameters[name] = parameters[id(parameter)]


def _fill(module, sources, options):
    """Loads this rank's part of every parameter, one after the other."""
    filled = {}
    for name, one in module.named_parameters():
        assert one.placements == (Shard(0),)
        rows = sources.pop(name)(*rows_of(one.shape, options.ranks))
        own = rows.to("cpu" if options.on_host else options.device, one.dtype)
        whole = DTensor.from_local(own, one.device_mesh, one.placements, run_check=False, shape=one.shape, stride=one.stride())
        filled[id(one)] = torch.nn.Parameter(whole, one.requires_grad)
    _replace(module, filled)


def hollow_copy(network):
    """A copy of a network's module whose parameters have no values, and their sources: this rank's parts."""
    module, own = copy.deepcopy(network.skeleton), dict(network.module.named_parameters())
    return module, {one: _own(own[name].detach().to_local()) for name, one in module.named_parameters()}


def _own(part):
    return lambda _begin, _end: part.clone()


def local(tensor):
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor):
    """A whole tensor of which each rank holds a part; collective."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor


class ShardedWeights(TrainedWeights):
    """This rank's parts of trained weights: `masters` and gradients are parts, by name."""

    def __init__(self, parameters, network):
        self.parameters = parameters
        self._network, self._ranks = network, network.options.ranks
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        self.masters = {name: one.detach().to_local() for name, one in parameters.items()}
        # All ranks or none.
        finds_room = _finds_room(4 * self.num_parameters, network.options.device)
        self._defers = self._ranks.sum(float(finds_room)) == self._ranks.number
        # Whether there are gradients that are not yet summed over the ranks.
        self._is_apart = False
        network.root.set_requires_gradient_sync(not self._defers)

    @property
    def num_parameters(self):
        """Number of trained weights, on all ranks."""
        return sum(one.numel() for one in self.parameters.values())

    def note_backward(self):
        """A gradient was added to."""
        self._is_apart = self._defers

    def gather_gradients(self):
        """Sums gradients over the ranks; collective."""
        if not self._is_apart:
            return
        self._is_apart = False
        # Gradients are summed after a backward pass: one of a dummy token.
        self._network.root.set_requires_gradient_sync(True)
        with torch.enable_grad():
            outputs = self._network.pass_nothing()
        torch.autograd.backward(outputs, [torch.zeros_like(one) for one in outputs])
        self._network.root.set_requires_gradient_sync(False)

    def gradient(self, name):
        gradient = self.parameters[name].grad
        return None if gradient is None else gradient.to_local()

    def clear_gradients(self):
        self.gather_gradients()
        for parameter in self.parameters.values():
            parameter.grad = None

    def total(self, value):
        return self._ranks.sum(value)

    def refresh(self):
        """Nothing: passes gather their weights from the f32 weights."""

    def copy_parameters(self, masters):
        return masters

    def swapped(self, parameters):
        return self._swapped(parameters)

    @contextlib.contextmanager
    def _swapped(self, others):
        # In place, because passes gather from this memory. A held graph gathers again in its backward pass.
        own = {name: master.clone() for name, master in self.masters.items()}
        self._put_all(others)
        try:
            yield
        finally:
            self._put_all(own)

    def _put_all(self, values):
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(values[name])

    def shape(self, name):
        return self.parameters[name].shape

    def full(self, name, part):
        one = self.parameters[name]
        whole = DTensor.from_local(part, one.device_mesh, one.placements, run_check=False, shape=one.shape, stride=one.stride())
        return whole.full_tensor()

    def rows(self, name):
        return slice(*rows_of(self.parameters[name].shape, self._ranks))


def rows_of(shape, ranks):
    """A rank's rows of a tensor: from, and up to. If it holds none, both are 0."""
    number = -(-shape[0] // ranks.number)
    begin, end = ranks.rank * number, min((ranks.rank + 1) * number, shape[0])
    return (begin, end) if begin < end else (0, 0)


def _finds_room(num_bytes, device):
    if device.type == "cuda":
        free = free_memory()
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return num_bytes <= _SHARE_FOR_GRADIENTS * free
