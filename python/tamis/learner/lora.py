"""Adapters (LoRA, Hu et al. 2021): low-rank additions to linear layers are trained, the policy stays as it is.

    y = W x + (alpha / rank) B A x      A: [rank, inputs], B: [outputs, rank], zero at first

peft makes the layers. The policy's own weights are kept in the type that is computed in and take neither
gradient nor moments; A and B are trained weights like any other. The policy without its adapter (the network
`base`) is a reference that costs no memory.

Names and files of an adapter are peft's: `adapter_config.json` and `adapter_model.safetensors`.
"""

import json
import warnings
from dataclasses import dataclass

import torch

from .model import Network
from .protocol import Refused, RequestError
from .vision import Vision

_PREFIX = "base_model.model."


@dataclass(frozen=True)
class LoraOptions:
    """Rank, alpha, the layers' names (`None`: every linear layer but the head), and the seed that A is drawn with."""

    rank: int
    alpha: float
    targets: tuple | None
    seed: int

    @classmethod
    def read(cls, settings):
        """From the object `lora` of the options."""
        rank = settings.count("rank", least=1)
        alpha = settings.number("alpha", above=0.0)
        if settings.number("dropout", 0.0, least=0.0) != 0.0:
            raise RequestError("`dropout` of `lora` must be 0: log-probabilities would differ from pass to pass")
        targets = settings.texts("targets", None)
        seed = settings.count("seed", 0)
        settings.finish()
        return cls(rank, alpha, None if targets is None else tuple(targets), seed)


class AdapterNetwork(Network):
    """A policy with an adapter, which alone is trained."""

    def without_adapter(self):
        """Inside this context the policy computes as if it had no adapter; a graph held outside stays good."""
        return self.adapted.disable_adapter()

    def trained_parameters(self):
        """A and B of every layer by peft's names in a file."""
        own = super().trained_parameters()
        return {_PREFIX + name.replace(".default.", "."): parameter for name, parameter in own.items()}

    def file_tensors(self):
        """The policy's tensors with the adapter merged into them, under the names they have without one."""
        tensors = []
        for name, module in self.module.named_modules():
            prefix = name.removesuffix(".base_layer")
            layer = self.module.get_submodule(prefix) if prefix != name else None
            for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if ".lora_" in f".{name}.":
                    continue
                merges = layer is not None and own == "weight"
                make = self._merger(prefix, layer, parameter) if merges else parameter.data.float
                tensors.append((f"{prefix}.{own}" if prefix else own, parameter, make))
        seen, once = set(), []
        for name, parameter, make in tensors:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                once.append((name, list(parameter.shape), make))
        return once

    def _merger(self, prefix, layer, parameter):
        def merge():
            masters = self.weights.masters
            a, b = (masters[f"{_PREFIX}{prefix}.lora_{side}.weight"] for side in "AB")
            delta = (b @ a) * layer.scaling["default"]
            return parameter.data.float() + (delta.t() if layer.fan_in_fan_out else delta)

        return merge

    def adapter_config(self):
        """The content of `adapter_config.json`."""
        config = self.adapted.peft_config["default"].to_dict()
        config["base_model_name_or_path"] = str(self.source.folder)
        config["inference_mode"] = True
        for name, value in config.items():
            if isinstance(value, set):
                config[name] = sorted(value)
        return json.dumps(config, indent=2, default=str)


def add_adapter(network, lora):
    """The network with a new adapter, which at first changes nothing; only the adapter is trained."""
    try:
        import peft
    except ImportError:
        raise Refused(
            "adapters need peft, which is not installed", "scripts/install-torch, or pip install peft"
        ) from None
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        # A vision tower stays as it is: servers take adapters of the text alone.
        exclude_modules=None if network.vision is None else r".*\bvisual\b.*",
    )  # fmt: skip
    head, embedding = network.module.get_output_embeddings(), network.module.get_input_embeddings()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(lora.seed)
        try:
            adapted = peft.get_peft_model(network.module, config, autocast_adapter_dtype=False)
        except (ValueError, TypeError) as error:
            raise Refused(
                f"the adapter does not fit the policy: {str(error).splitlines()[0]}", "see `targets`"
            ) from None
    module = network.module.eval()
    if module.get_output_embeddings() is not head or module.get_input_embeddings() is not embedding:
        raise Refused(
            "an adapter of the output head or of the embedding cannot be trained", "leave it out of `targets`"
        )
    own = AdapterNetwork(module, module.base_model, network.head, network.source, network.options)
    own.adapted = adapted
    if network.vision is not None:
        own.vision = Vision(own.decoder, network.vision.images)
    unknown = [name for name, one in module.named_parameters() if one.requires_grad and ".lora_" not in name]
    if unknown:
        raise Refused(f"the adapter would train `{unknown[0]}`, which is none of its own")
    return own
