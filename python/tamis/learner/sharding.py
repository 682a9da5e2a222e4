"""Networks whose weights are shared out over the ranks of a gang, by PyTorch's FSDP2.

Each rank holds a part of every weight, of its gradient and of its moments, in f32. Each layer is a unit, and what is
in no layer (embedding, last norm, head) another: a unit's weights are gathered, in the type that is computed in, when
a pass comes to it, and freed behind it. Gradients are summed in f32: the derivatives that a controller sends are
normalised over the whole batch, so there is nothing to divide by.

Gradients of several waves are summed on each rank first, and over the ranks once, before the optimizer looks at them,
where a whole f32 gradient finds room on every rank; otherwise after every wave.
"""

import contextlib
import copy
import os

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers.modeling_layers import GradientCheckpointingLayer

from .device import free_memory
from .protocol import Refused
from .weights import TrainedWeights

# A whole gradient is held on every rank where it takes at most this part of the memory that is free.
_SHARE_FOR_GRADIENTS = 0.25


class _Root(torch.nn.Module):
    """What a pass goes through: the weights that are in no layer are gathered while it computes `call`."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, call):
        return call()


def shard(network, exact, kept):
    """Shares a network's weights out; passes go through `network.root` from here on.

    `exact` has the f32 values of parameters that learn and are held rounded, `kept` the names of modules that stay in
    f32.
    """
    if network.vision is not None:
        raise Refused("models that see images are trained by one rank", "set `learner.gpus_per_node: 1`")
    options, module = network.options, network.module
    network.skeleton = _skeleton(module)
    names = {id(one): name for name, one in network.trained_parameters().items()}
    rounded = options.dtype if options.dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=rounded, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    root = _Root(module)
    units = [(one, whole) for name, one in module.named_modules() if name.rpartition(".")[2] in kept]
    units += [(one, policy) for one in module.modules() if isinstance(one, GradientCheckpointingLayer)]
    mesh = options.ranks.mesh(options.device.type)
    for unit, of_unit in [*units, (root, policy)]:
        for parameter in unit.parameters():
            if id(parameter) in names and names[id(parameter)] in exact:
                # What learns is held in f32, and rounded when it is gathered.
                parameter.data = exact.pop(names[id(parameter)]).to(options.device)
        fully_shard(unit, mesh=mesh, mp_policy=of_unit, reshard_after_forward=True)
    for unit in root.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)
            # gloo knows sums alone.
            unit.set_force_sum_reduction_for_comms(True)
    network.root = root
    parameters = network.trained_parameters()
    network.weights = ShardedWeights(parameters, network) if parameters else None


def _skeleton(module):
    """A copy of a module whose parameters are of their shapes and types, and have no values."""
    meta = {
        id(one): torch.nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad) for one in module.parameters()
    }
    return copy.deepcopy(module, meta)


def plain_copy(network):
    """A copy of a network's module as it is now, whole on this rank."""
    if network.root is None:
        return copy.deepcopy(network.module)
    skeleton, device = network.skeleton, network.options.device
    own = dict(network.module.named_parameters())
    values = {}
    for name, one in skeleton.named_parameters():
        full = own[name].detach().full_tensor().to(device, one.dtype)
        values[id(one)] = torch.nn.Parameter(full, one.requires_grad)
    return copy.deepcopy(skeleton, values)


def full(tensor):
    """The whole of a tensor of which each rank holds a part; every rank asks for it."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor


class ShardedWeights(TrainedWeights):
    """The parts of trained weights that this rank holds: `masters` and gradients are parts, by name."""

    def __init__(self, parameters, network):
        self.parameters = parameters
        self._network, self._ranks = network, network.options.ranks
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        self.masters = {name: one.detach().to_local() for name, one in parameters.items()}
        # All ranks or none.
        finds_room = _finds_room(4 * self.num_parameters, network.options.device)
        self._defers = self._ranks.sum(float(finds_room)) == self._ranks.number
        # Whether there are gradients that are not summed over the ranks yet.
        self._is_apart = False
        network.root.set_requires_gradient_sync(not self._defers)

    @property
    def num_parameters(self):
        """Number of trained numbers, on all ranks."""
        return sum(one.numel() for one in self.parameters.values())

    def note_backward(self):
        """A gradient was added to."""
        self._is_apart = self._defers

    def gather_gradients(self):
        """Sums over the ranks what each has added up alone; every rank asks for it."""
        if not self._is_apart:
            return
        self._is_apart = False
        # Gradients are summed behind a backward pass: one of a token that counts for nothing.
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
        """Nothing: what is computed with is gathered from the f32 weights in every pass."""

    def copy_parameters(self, masters):
        return masters

    def swapped(self, parameters):
        return self._swapped(parameters)

    @contextlib.contextmanager
    def _swapped(self, others):
        # In place: passes gather from this memory. What a held graph needs is gathered anew in its backward pass.
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

    def put(self, name, part, values):
        part.copy_(part_of(values, self._ranks))


def part_of(values, ranks):
    """The rows of a whole tensor that this rank holds."""
    parts = torch.chunk(values, ranks.number)
    return parts[ranks.rank] if ranks.rank < len(parts) else values[:0]


def put_frozen(parameter, values, ranks):
    """Gives a parameter, of which this rank holds a part, these values."""
    if isinstance(parameter, DTensor):
        assert parameter.placements == (Shard(0),)
        parameter.to_local().copy_(part_of(values, ranks))
    else:
        parameter.copy_(values)


def _finds_room(num_bytes, device):
    if device.type == "cuda":
        free = free_memory()
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return num_bytes <= _SHARE_FOR_GRADIENTS * free
