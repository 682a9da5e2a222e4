"""Adapters (LoRA, Hu et al. 2021): low-rank additions to linear layers are trained, and the policy stays unchanged.

    y = W x + (alpha / rank) B A x      A: [rank, inputs], B: [outputs, rank], zero at first

peft makes the layers; those of fused experts have an A and a B for each expert. The policy's own weights are kept in
the type of passes, without gradients and moments; A and B are trained like any other weights. The policy without its
adapter (the network `base`) is a reference that costs no memory.

Names and files of an adapter are peft's: `adapter_config.json` and `adapter_model.safetensors`.
"""

import contextlib
import json
import warnings
from dataclasses import dataclass

import torch

from . import four_bits
from .model import Network
from .protocol import Refused, RequestError
from .sharding import full
from .vision import Vision

_PREFIX = "base_model.model."


@dataclass(frozen=True)
class LoraOptions:
    """Rank, alpha, the layers' names (`None`: every linear layer but the head), the seed of A's draws, and whether the
    policy below it is held in 4 bits (`four_bits`).
    """

    rank: int
    alpha: float
    targets: tuple | None
    seed: int
    is_four_bits: bool = False

    @classmethod
    def read(cls, settings):
        """From the object `lora` of the options."""
        rank = settings.count("rank", least=1)
        alpha = settings.number("alpha", above=0.0)
        if settings.number("dropout", 0.0, least=0.0) != 0.0:
            raise RequestError("`dropout` of `lora` must be 0: log-probabilities would differ from pass to pass")
        targets = settings.texts("targets", None)
        seed = settings.count("seed", 0)
        is_four_bits = settings.choice("base", ["dtype", "nf4"], "dtype") == "nf4"
        settings.finish()
        return cls(rank, alpha, None if targets is None else tuple(targets), seed, is_four_bits)


class AdapterNetwork(Network):
    """A policy with an adapter; only the adapter is trained."""

    def without_adapter(self):
        """In this context the policy computes without its adapter; a graph held outside stays valid."""
        return self.adapted.disable_adapter()

    def trained_parameters(self):
        """A and B of every layer by peft's names in a file."""
        own = super().trained_parameters()
        return {_PREFIX + name.replace(".default.", "."): parameter for name, parameter in own.items()}

    def file_tensors(self):
        """The policy's tensors with the adapter merged into them, under their names without an adapter."""
        tensors, seen = [], set()
        for name, module in self.module.named_modules():
            if ".lora_" in f".{name}.":
                continue
            prefix, layers = self._wrapped(name)
            for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                adding = [layer for layer in layers if getattr(layer, "parameter_name", "weight") == own]
                make = self._merger(adding, own, parameter) if adding else lambda one=parameter: _exact(one)
                tensors.append((f"{prefix}.{own}" if prefix else own, list(four_bits.shape_of(parameter)), make))
        return tensors

    def _wrapped(self, name):
        """A module's name without an adapter, and the adapter layers around it.

        If several parameters of one module are adapted (fused experts), each has a layer, one around the other.
        """
        layers = []
        while name.endswith(".base_layer") and hasattr(self.module.get_submodule(_parent(name)), "lora_A"):
            name = _parent(name)
            layers.append(self.module.get_submodule(name))
        return name, layers

    def _merger(self, layers, own, parameter):
        """Makes the f32 values of a parameter (`own` in its module) with the additions of these layers."""
        names, weights = {id(one): name for name, one in self.weights.parameters.items()}, self.weights
        base = layers[0].get_base_layer()
        factors = [(module, names[id(module.weight)]) for layer in layers for module in _factors(layer)]

        @torch.no_grad()
        def merge():
            merged = _exact(parameter)
            # peft multiplies in the type of these.
            whole = [(module, "weight", weights.full(name, weights.masters[name])) for module, name in factors]
            with _standing_in([(base, own, merged), *whole]):
                return sum((layer.get_delta_weight("default") for layer in layers), merged)

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


def _exact(parameter):
    """The f32 values of a frozen parameter."""
    return full(four_bits.values_of(parameter)).float()


def _parent(name):
    return name.rpartition(".")[0]


def _is_mergeable(layer):
    return "default" in layer.lora_A and hasattr(layer, "get_delta_weight")


def _factors(layer):
    return layer.lora_A["default"], layer.lora_B["default"]


@contextlib.contextmanager
def _standing_in(values):
    """In this context modules have these tensors in place of parameters: `(module, name, tensor)`."""
    held = [(module, name, module._parameters[name]) for module, name, _ in values]
    try:
        for module, name, tensor in values:
            module._parameters[name] = tensor
        yield
    finally:
        for module, name, parameter in held:
            module._parameters[name] = parameter


def add_adapter(network, lora):
    """The network with a new adapter, which changes nothing at first; only the adapter is trained."""
    try:
        import peft
    except ImportError:
        raise Refused(
            "adapters need peft, which is not installed", "scripts/install-torch, or pip install peft"
        ) from None
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        # A vision tower is unchanged: servers take adapters only of the text part.
        exclude_modules=None if network.vision is None else r".*\bvisual\b.*",
    )  # fmt: skip
    head, embedding = network.module.get_output_embeddings(), network.module.get_input_embeddings()
    if lora.is_four_bits:
        if network.options.ranks is not None:
            message = "weights in 4 bits cannot be shared out over several ranks"
            raise Refused(message, "learn on one GPU (`learner.gpus_per_node: 1`), or remove `learner.lora.base`")
        four_bits.quantise(network)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(lora.seed)
        try:
            adapted = peft.get_peft_model(network.module, config, autocast_adapter_dtype=False)
        except (ValueError, TypeError) as error:
            raise Refused(
                f"the adapter does not fit the policy: {str(error).splitlines()[0]}", "see `learner.lora.targets`"
            ) from None
    module = network.module.eval()
    if module.get_output_embeddings() is not head or module.get_input_embeddings() is not embedding:
        raise Refused(
            "an adapter of the output head or of the embedding cannot be trained", "leave it out of `learner.lora.targets`"
        )
    own = AdapterNetwork(module, module.base_model, network.head, network.source, network.options)
    own.adapted = adapted
    own.sources, own.read_whole = network.sources, network.read_whole
    if network.vision is not None:
        own.vision = Vision(own.decoder, network.vision.images)
    strange = [name for name, one in module.named_modules() if hasattr(one, "lora_A") and not _is_mergeable(one)]
    if strange:
        message = f"an adapter of `{strange[0]}` cannot be merged into the policy's weights"
        raise Refused(message, "leave it out of `learner.lora.targets`")
    unknown = [name for name, one in module.named_parameters() if one.requires_grad and ".lora_" not in name]
    if unknown:
        message = f"the adapter would train `{unknown[0]}`, which is none of its own"
        raise Refused(message, "name only linear layers in `learner.lora.targets`")
    return own
