"""A GPU played on the CPU, for machines without one: `python played_cuda.py` runs test_cuda.py on it, with names of other
tests (`test_logprob`) those, as scripts/gpu-check does on a GPU.

Tensors of the played device say that they are on `cuda:0`, hold their numbers on the CPU, and refuse to be mixed with
tensors of the CPU as CUDA does. So what is shown is that nothing is on the wrong device and that the passes written for
CUDA (bf16, `varlen_attn`, flash-attention over pages, products with another type of output, the fused AdamW) give what
they should. The tests show nothing about kernels, speed, memory, or properties that only a GPU reports. They use
private parts of PyTorch, so they need the version of requirements-torch.txt.
"""

import contextlib
import os
import sys
import unittest
from unittest import mock

# Before the tests' support is read.
os.environ["TAMIS_TEST_DEVICE"] = "cuda"
# First: without PyTorch it reports that and skips the tests.
import support

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only
from transformers import PreTrainedModel

aten = torch.ops.aten
DEVICE = torch.device("cuda:0")
# These take indices from the CPU.
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Tests of properties that only a GPU reports.
LEFT_OUT = ("Handles", "Device", "test_memory_is_that_of_a_chunk")
# A tensor of the played device is made around one of `meta`, and reports that to PyTorch's core, except while
# weights are read, when real `meta` is meant.
_meta_is_played = True


class Played(torch.Tensor):
    """A tensor that claims to be on the played device; `held` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        shell = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device="meta")
        made = torch.Tensor._make_subclass(
            cls, shell, held.requires_grad, dispatch_device=True, device_for_backend_keys=DEVICE
        )
        made.held = held
        return made

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @property
    def data(self):
        return Played(self.held.detach())

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.held = value.held

    def cpu(self):
        return self.to("cpu")

    def to(self, *args, **kwargs):
        device, dtype, _, form = torch._C._nn._parse_to(*args, **{name: one for name, one in kwargs.items() if name != "copy"})
        is_same = (device is None or device.type == "cuda") and dtype in (None, self.dtype) and form in (None, torch.preserve_format)
        # The core takes the held device for another one and would copy.
        return self if is_same and not kwargs.get("copy") else super().to(*args, **kwargs)

    def data_ptr(self):
        return self.held.data_ptr()

    def __deepcopy__(self, memo):
        memo[id(self)] = made = Played(self.held.detach().clone()).requires_grad_(self.requires_grad)
        made._is_param = getattr(self, "_is_param", False)
        return made

    def tolist(self):
        return self.held.detach().tolist()

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Playing(TorchDispatchMode):
    """Intercepts operations without a tensor of the played device, which may make one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def _held(values):
    return tree_map_only(Played, lambda one: one.held, values)


def _is_played(device, beside):
    kind = torch.device(device).type
    return kind == "cuda" or (kind == "meta" and (beside or _meta_is_played))


def compute(func, args, kwargs):
    """An operation on the held numbers. Its results are on the simulated device if they would be on a GPU."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    played = [one for one in tensors if isinstance(one, Played)]
    if str(func) == "prim.device.default" and played:
        return torch.device("meta")
    if func is aten._local_scalar_dense.default:
        return func(*_held(args))
    if func is aten.copy_.default:
        func(_held(args[0]), _held(args[1]))
        return args[0]
    if func is aten._to_copy.default:
        return _copy(args, kwargs)
    _refuse_mixed(func, args, tensors, played)
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    is_played = bool(played)
    if kwargs.get("device") is not None:
        is_played = _is_played(kwargs["device"], is_played)
        kwargs = {**kwargs, "device": torch.device("cpu")} if is_played else kwargs
    found = _on_gpu_alone(func, _held(args), _held(kwargs))
    if found is NotImplemented:
        found = func(*_held(args), **_held(kwargs))
    if not is_played:
        return found
    # A tensor that was changed in place is the given one.
    given = {id(one.held): one for one in played}
    return tree_map_only(
        torch.Tensor, lambda one: one if isinstance(one, Played) else given.get(id(one)) if id(one) in given else Played(one), found
    )


def _copy(args, kwargs):
    (source,) = args
    to = kwargs.get("device")
    becomes_played = isinstance(source, Played) if to is None else _is_played(to, isinstance(source, Played))
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
    found = aten._to_copy.default(*_held(args), **kwargs)
    return Played(found) if becomes_played else found


def _refuse_mixed(func, args, tensors, played):
    if not played or len(played) == len(tensors):
        return
    strange = [one for one in tensors if not isinstance(one, Played) and one.dim()]
    if func in INDEXING and isinstance(args[0], Played):
        strange = [one for one in strange if one.dtype not in (torch.int64, torch.int32, torch.bool)]
    if strange:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu: {func}")


def _on_gpu_alone(func, args, kwargs):
    """Operations that PyTorch has only for CUDA."""
    if func is aten.mm.dtype:
        left, right, dtype = args
        assert left.dtype == right.dtype in (torch.bfloat16, torch.float16) and dtype == torch.float32
        return left.float() @ right.float()
    if func is aten.bmm.dtype:
        left, right, dtype = args
        assert left.dtype == right.dtype in (torch.bfloat16, torch.float16) and dtype == torch.float32
        return torch.bmm(left.float(), right.float())
    if func is aten.addmm.dtype_out:
        total, left, right, dtype = args
        assert left.dtype == right.dtype and total.dtype == dtype == torch.float32
        return kwargs["out"].copy_(total + left.float() @ right.float())
    return NotImplemented


def varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
    """`varlen_attn` with the requirements of its flash kernel, computed by hand."""
    from test_model import varlen_by_hand

    for states in (query, key, value):
        assert isinstance(states, Played) and states.dtype in (torch.bfloat16, torch.float16)
        assert states.stride(-1) == 1 and states.shape[-1] % 8 == 0 and states.shape[-1] <= 256
    assert torch.backends.cuda.flash_sdp_enabled() and not torch.backends.cuda.cudnn_sdp_enabled()
    rounded = query.dtype
    query, key, value = (states.float() for states in (query, key, value))
    with torch.device("cuda"):
        attended = varlen_by_hand(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size, enable_gqa=enable_gqa
        )
    return attended.to(rounded)


def _reading(read):
    """Weights are read on the CPU; there `meta` means itself."""

    def plainly(*args, **kwargs):
        global _meta_is_played
        was, _meta_is_played = _meta_is_played, False
        try:
            with _disable_current_modes():
                return read(*args, **kwargs)
        finally:
            _meta_is_played = was

    return plainly


@contextlib.contextmanager
def playing():
    """Inside, PyTorch has the played device, for the rest of the process in part."""
    from tamis.learner import critic, loading

    # They are cached at the first call, which must not see the replacements.
    _device_constructors()
    torch._C._ensureCUDADeviceGuardSet()
    torch.__future__.set_swap_module_params_on_conversion(True)
    make = torch.tensor

    def tensor(data, *args, device=None, **kwargs):
        made = make(data, *args, **kwargs)
        return made if device is None or torch.device(device).type == "cpu" else made.to(device)

    says = {
        "is_available": True, "synchronize": None, "empty_cache": None, "get_device_name": "a played GPU", "current_device": 0,
        "mem_get_info": (10**10, 10**10), "memory_reserved": 0, "memory_allocated": 0, "device_count": 1, "_lazy_init": None,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, value in says.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", lambda *_, value=value: value))
        stack.enter_context(mock.patch("torch._C._cuda_init", lambda *_: None, create=True))
        stack.enter_context(mock.patch("torch._C._cuda_setDevice", lambda *_: None, create=True))
        stack.enter_context(mock.patch("torch.cuda._check_stray_context", lambda *_: None, create=True))
        stack.enter_context(mock.patch("torch.tensor", tensor))
        stack.enter_context(mock.patch("torch.nn.attention.varlen.varlen_attn", varlen))
        read = classmethod(_reading(PreTrainedModel.from_pretrained.__func__))
        stack.enter_context(mock.patch.object(PreTrainedModel, "from_pretrained", read))
        for module in (loading, critic):
            stack.enter_context(mock.patch.object(module, "load_module", _reading(loading.load_module)))
        with Playing():
            yield


def main(names):
    from played_flash import playing_flash

    with playing(), playing_flash():
        every = unittest.defaultTestLoader.loadTestsFromNames(names or ["test_cuda"])
        chosen = [test for module in every for case in module for test in case if not any(name in test.id() for name in LEFT_OUT)]
        done = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(chosen))
    return not done.wasSuccessful()


if __name__ == "__main__":
    sys.path.insert(0, str(support.ROOT / "python"))
    sys.exit(main(sys.argv[1:]))
