"""Floating-point operations of training: how many a model needs, and how many a device can do.

The controller counts a step's tokens and divides the one by the other: `perf/mfu`, the share of the device's peak that
the model's own operations take (MFU, Chowdhery et al., PaLM, 2022, appendix B).
"""

import functools
import re
import time

import torch
from transformers.pytorch_utils import Conv1D

from . import attention

# Dense bf16 with sums in f32, 10^12 operations a second, as NVIDIA's data sheets and whitepapers have them (half of the
# number with sparsity). The first name that is in the device's name counts.
PEAKS = (
    ("GB200", 2500.0), ("B200", 2250.0),
    ("H200 NVL", 835.0), ("GH200", 989.0), ("H200", 989.0),
    ("H100 NVL", 835.0), ("H100 PCIe", 756.0), ("H100", 989.0), ("H800", 989.0), ("H20", 148.0),
    ("L40S", 362.0), ("L40", 181.0), ("L20", 119.5), ("L4", 121.0),
    ("A100", 312.0), ("A800", 312.0), ("A40", 149.7), ("A10", 125.0), ("RTX A6000", 154.8),
    ("RTX 5090", 209.5), ("RTX 4090", 165.2), ("RTX 3090", 71.0),
)  # fmt: skip
# Part of a GPU, or a slower one with a name that begins like another's.
_OTHERS = re.compile(r"\bMIG\b|\bLaptop\b|\bMax-Q\b|\bRTX \d+ D\b")


def peak_of(name):
    """Operations a second of a GPU with this name, dense bf16; `None` if it is not known."""
    if _OTHERS.search(name):
        return None
    return next((1e12 * peak for part, peak in PEAKS if re.search(rf"\b{re.escape(part)}\b", name)), None)


def device_peak(device):
    """Operations a second of a device: of a GPU in dense bf16, whatever the type of passes, `None` if it is not known; of a
    CPU as measured, with PyTorch's threads."""
    if device.type == "cuda":
        return peak_of(torch.cuda.get_device_name(device))
    return cpu_peak(torch.get_num_threads()) if device.type == "cpu" else None


@functools.cache
def cpu_peak(num_threads, size=512, num_tries=5):
    """Operations a second of products of two square f32 matrices with PyTorch's threads, of which it has `num_threads`: the
    best of a few tries, for others may be at work."""
    left, right, taken = torch.ones(size, size), torch.ones(size, size), []
    for _ in range(num_tries):
        begin = time.perf_counter()
        torch.mm(left, right)
        taken.append(time.perf_counter() - begin)
    return 2 * size**3 / min(taken)


def training_work(network):
    """Operations of a forward and a backward pass of a text model: `{"token", "completion", "pair"}`; `None` if the model
    has weights whose use per token is not known (experts, convolutions, images).

        token       for each token of a prompt or a completion: 6 for each weight of a layer's linear maps that learns, 4
                    for a frozen one. 2 forward, 2 for the gradient by its input, 2 for its own gradient
        completion  for each completion token: the same over the weights of the output head
        pair        for each pair of tokens that see each other: 12 x width (heads x head size) in each layer without a
                    window; 4 forward, 8 backward

    Norms, activations, rotary positions and the embedding's look-up are not counted, nor what is computed again in the
    backward pass.
    """
    head = network.module.get_output_embeddings()
    if network.vision is not None or not isinstance(head, torch.nn.Linear):
        return None
    token, maps = 0, set()
    for module in network.decoder.modules():
        size = _size(module)
        if size is not None:
            token += size * _times(module.weight)
            maps.add(id(module.weight))
        elif isinstance(module, torch.nn.Embedding):
            maps.add(id(module.weight))
    if any(one.dim() > 1 and id(one) not in maps for one in network.decoder.parameters()):
        return None
    config = network.config
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        return None
    num_layers = config.num_hidden_layers - attention.windowed_layers(config)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys, values = getattr(config, "qk_head_dim", None) or size, getattr(config, "v_head_dim", None) or size
    return {
        "token": token,
        "completion": head.in_features * head.out_features * _times(head.weight),
        "pair": 6 * num_layers * config.num_attention_heads * (keys + values),
    }


def _size(module):
    """Number of weights of a linear map; they may be packed, so that the tensor has fewer numbers."""
    if isinstance(module, torch.nn.Linear):
        return module.in_features * module.out_features
    return module.weight.numel() if isinstance(module, Conv1D) else None


def _times(weight):
    return 6 if weight.requires_grad else 4
