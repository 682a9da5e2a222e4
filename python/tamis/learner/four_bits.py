"""Weights below an adapter in 4 bits (NF4 with 8-bit scales: QLoRA, Dettmers et al. 2023), by bitsandbytes.

    W[i] = scale(block of 64) * code[index i]      0.516 bytes a weight instead of 2

Linear layers of the decoder are quantised, as transformers does it for a `BitsAndBytesConfig` of type `nf4` with
`bnb_4bit_use_double_quant`. Embedding, output head, norms, biases and a vision tower keep the type of passes; so do
fused experts, which are no linear layers.

Differs from bitsandbytes: every pass multiplies by the dequantised weights, in the type of passes. Its own layers use
other kernels for few rows, and on some CPUs other weights, if no gradient is needed. Samples and training passes would
then differ by more than rounding.
"""

import torch
from torch.nn import functional

from .protocol import Refused

HINT = "pip install bitsandbytes, or remove `learner.lora.base`"


def quantise(network):
    """Replaces the decoder's linear layers by ones in 4 bits, each on the network's device."""
    layer_class = _layer_class()
    module, device = network.module, network.options.device
    head = module.get_output_embeddings()
    linear = [
        (name, one) for name, one in module.named_modules()
        if type(one) is torch.nn.Linear and one is not head and not (network.vision is not None and _is_of_vision(name))
    ]  # fmt: skip
    if not linear:
        message = f"{type(network.decoder).__name__} has no linear layers that could be held in 4 bits"
        raise Refused(message, "remove `learner.lora.base`")
    for name, one in linear:
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, layer_class.of(one, device))


def _is_of_vision(name):
    return "visual" in name.split(".")


def is_quantised(parameter):
    """Whether a parameter is held in 4 bits."""
    return getattr(parameter, "quant_state", None) is not None


def shape_of(parameter):
    """The shape of a weight, also of one in 4 bits."""
    return parameter.quant_state.shape if is_quantised(parameter) else parameter.shape


def number_of(parameter):
    """Numbers in a weight, also in one in 4 bits."""
    return torch.Size(shape_of(parameter)).numel()


@torch.no_grad()
def values_of(parameter):
    """The values that passes multiply by."""
    if not is_quantised(parameter):
        return parameter.data
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)


class _Product(torch.autograd.Function):
    """`x W' + b` of a frozen weight, which is dequantised again for the backward pass instead of kept for it."""

    @staticmethod
    def forward(context, inputs, weight, bias):
        context.weight = weight
        return functional.linear(inputs, values_of(weight).to(inputs.dtype), bias)

    @staticmethod
    def backward(context, gradient):
        return gradient @ values_of(context.weight).to(gradient.dtype), None, None


def _layer_class():
    try:
        import bitsandbytes
    except ImportError:
        raise Refused("weights in 4 bits need bitsandbytes, which is not installed", HINT) from None

    class Linear4bit(bitsandbytes.nn.Linear4bit):
        """A frozen linear layer in 4 bits."""

        @classmethod
        def of(cls, linear, device):
            """From a linear layer, whose weights are quantised on the device."""
            with torch.device("meta"):
                made = cls(linear.in_features, linear.out_features, bias=False, compute_dtype=linear.weight.dtype)
            weight = bitsandbytes.nn.Params4bit(
                linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True, module=made
            )
            try:
                made.weight = weight.to(device)
            except (NotImplementedError, RuntimeError, ValueError) as error:
                message = f"bitsandbytes {bitsandbytes.__version__} holds no weights in 4 bits on {device}: {error}"
                raise Refused(message.splitlines()[0], "install its newest version, or remove `learner.lora.base`") from None
            made.bias = None if linear.bias is None else torch.nn.Parameter(linear.bias.data, requires_grad=False)
            return made.eval()

        def forward(self, inputs):
            """Of inputs in the type of passes."""
            return _Product.apply(inputs, self.weight, self.bias)

    return Linear4bit
