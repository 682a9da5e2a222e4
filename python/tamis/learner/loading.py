"""Networks from folders in Hugging Face layout: read on the host, then placed on the device and checked."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from . import rotary
from .head import VocabularyHead
from .messages import first_line
from .model import Network
from .parts import Plan, Whole
from .protocol import FilesError, Refused, RequestError
from .sharding import shard
from .tiles import refuse_unknown
from .vision import Images, Vision, is_vision
from .weights import first_not_finite

# Modules that stay in f32: the head of a critic.
CRITIC_HEAD = ("score",)


@dataclass
class Source:
    """Files beside a network's weights, which are written again beside the weights of its checkpoints."""

    folder: Path
    config: dict
    generation: bytes | None

    @classmethod
    def read(cls, folder):
        """From a folder in Hugging Face layout."""
        folder = Path(folder)
        if not folder.is_absolute():
            raise RequestError(f"the path {folder} is not absolute")
        try:
            config = json.loads((folder / "config.json").read_text())
        except OSError as error:
            raise FilesError(f"failed to read {folder / 'config.json'}: {error.strerror}", folder) from None
        except ValueError as error:
            raise FilesError(f"{folder / 'config.json'} is not JSON: {error}", folder) from None
        if not isinstance(config, dict):
            raise FilesError(f"{folder / 'config.json'} is not a JSON object", folder)
        if "quantization_config" in config:
            message = f"the weights in {folder} are quantised already, and tamis writes whole ones"
            raise Refused(message, "name the original model, and quantise it with `learner.lora.base: nf4`")
        generation = folder / "generation_config.json"
        return cls(folder, config, generation.read_bytes() if generation.exists() else None)


def read_config(source):
    """The configuration as transformers reads it, without dropout."""
    try:
        config = AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of any kind
        message = f"failed to read the configuration in {source.folder}: {first_line(error)}"
        raise Refused(message, "name a model that the installed transformers knows, or install a newer one") from None
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


@dataclass
class Loaded:
    """The result of reading a folder: the module, tensors that it does not have, and, if several ranks share it out,
    the sources of its parameters' rows (`parts`), or the reason why every rank has read all of it.
    """

    module: torch.nn.Module
    unexpected: list
    sources: dict
    read_whole: str | None = None

    def hand_to(self, network):
        """Gives a network of this module the sources of its values."""
        network.sources, network.read_whole = self.sources, self.read_whole


def load_module(source, kind, dtype, by_parts=False):
    """A model of transformers in evaluation mode on the host, with every weight read from the folder.

    `by_parts`: values are read later, by the ranks that share it out.
    """
    config = read_config(source)
    if not by_parts:
        return _load_module(source, config, kind, dtype, None)
    plan = Plan(source.folder)
    try:
        with plan.reading():
            return _load_module(source, config, kind, dtype, plan)
    except Whole as error:
        loaded = _load_module(source, config, kind, dtype, None)
        loaded.read_whole = str(error)
        return loaded


def _load_module(source, config, kind, dtype, plan):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        module, report = kind.from_pretrained(
            source.folder, config=config, dtype=dtype, attn_implementation="eager", local_files_only=True,
            trust_remote_code=False, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Whole:
        raise
    except Exception as error:
        hint = "name a folder with a decoder-only model of transformers, its weights as safetensors"
        message = f"failed to load the model in {source.folder}: {first_line(error)}"
        if isinstance(error, OSError | SafetensorError):
            raise FilesError(message, source.folder, hint) from None
        raise Refused(message, hint) from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise FilesError(f"tensor `{missing[0]}` is missing from {source.folder}", source.folder)
    if report["mismatched_keys"]:
        name, found, expected = sorted(report["mismatched_keys"])[0]
        message = f"tensor `{name}` in {source.folder} has shape {list(found)}, expected {list(expected)}"
        raise FilesError(message, source.folder)
    broken = None if plan is not None else first_not_finite(module.named_parameters())
    if broken is not None:
        raise FilesError(f"tensor `{broken}` in {source.folder} holds numbers that are not finite", source.folder)
    rotary.mend(module)
    return Loaded(module.eval(), sorted(report["unexpected_keys"]), {} if plan is None else plan.sources)


def load_policy(folder, options, dtype=torch.float32):
    """A language model on the host, without values if several ranks share it out; `place` makes it ready."""
    source = Source.read(folder)
    sees = is_vision(source.config)
    images = Images(source.folder) if sees else None
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    loaded = load_module(source, kind, dtype, options.ranks is not None)
    unexpected = [name for name in loaded.unexpected if not is_spare(name)]
    if unexpected:
        message = f"tensor `{unexpected[0]}` in {source.folder} does not belong to this architecture"
        raise FilesError(message, source.folder)
    network = Network(loaded.module, loaded.module.base_model, None, source, options)
    loaded.hand_to(network)
    if sees:
        network.vision = Vision(network.decoder, images)
        network.decoder.visual.set_attn_implementation("sdpa")
        if options.freeze_vision:
            network.vision.freeze()
    return network


def is_spare(name):
    """Whether a weights' file may have a tensor that the model lacks: a tied head, frequencies."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def place(network):
    """Moves a network to its device and type, gives it its head, and checks what it computes.

    From here on its parameters that take gradients are trained.
    """
    options, module = network.options, network.module
    network.kept = frozenset({*(getattr(module, "_keep_in_fp32_modules_strict", None) or ()), *CRITIC_HEAD})
    if options.ranks is None:
        exact = _round(network)
        module.to(options.device)
    else:
        shard(network)
    if options.exact:
        refuse_unknown(network)
    network.head = network.head or options.head_of(module)
    if isinstance(network.head, VocabularyHead):
        # While the model still has the plain attention that it was loaded with.
        options.together(lambda: network.through(lambda: network.head.check(module)))
    network.choose_attention()
    if options.ranks is None:
        network.train(exact)


def _round(network):
    """Rounds a network to the type of passes; returns the f32 values of trained parameters that are rounded."""
    options, module = network.options, network.module
    # Rounded on the host, so that the device never holds more than it needs: only parameters that are rounded and learn
    # have separate f32 weights. Buffers keep their type, because frequencies of rotary positions must not be rounded.
    # So do value heads, and modules that the model's authors name.
    names = {id(one): name for name, one in network.trained_parameters().items()}
    exact = {}
    for name, parameter in module.named_parameters():
        if options.dtype == torch.float32 or network.keeps(name) or not parameter.is_floating_point():
            continue
        if id(parameter) in names:
            exact[names[id(parameter)]] = parameter.data.to(options.device, torch.float32)
        elif network.vision is not None:
            network.keep_exact(name, parameter.data)
        parameter.data = parameter.data.to(options.dtype)
    return exact


def load_reference(folder, options):
    """A frozen language model in the type of passes."""
    network = options.together(lambda: load_policy(folder, options, options.dtype))
    network.module.requires_grad_(False)
    place(network)
    return network
