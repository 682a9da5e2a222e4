"""A decoder with a head: loaded from a folder in Hugging Face layout, run forward over waves.

Weights, gradients and moments are f32; the decoder computes in f32 on a CPU and in bf16 on a GPU unless the
user says otherwise (see `weights`).

Any decoder-only model of transformers may be named, so nothing is taken on trust that a wrong guess would
falsify in silence. When a model is loaded, two short sequences and a few made-up hidden states are run through
it, and compared with its plain (`eager`) attention over one sequence alone and with its own logits:

- a position sees nothing that comes later (else the model is refused);
- packed sequences have the numbers they have alone (else they are passed one by one);
- the logits are the head's as `logprob` computes them (else the model is refused).

Dropout is off: the decoder is never put in training mode, and its configuration's rates are set to 0.
"""

import copy
import json
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from . import attention
from .logprob import chunk_tokens, logits, logprob_and_entropy
from .packing import Pack, pack, pack_one_by_one
from .protocol import Refused, RequestError
from .weights import TrainedWeights

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# What a user may name; anything else is passed on to transformers.
ATTENTIONS = {"varlen": attention.VARLEN, "sequences": attention.SEQUENCES}
# Modules that stay in f32: the head of a critic.
CRITIC_HEAD = ("score",)
# How far two ways to compute the same may lie apart, as a part of the largest number.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


@dataclass
class ComputeOptions:
    """How networks compute, from the options of `open`."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    logprob_chunk: int | None
    recompute: bool


@dataclass
class Source:
    """Files beside the weights from which a network was made, to be written beside those it becomes."""

    folder: Path
    config: dict
    generation: bytes | None

    @classmethod
    def read(cls, folder):
        """Of a folder in Hugging Face layout."""
        folder = Path(folder)
        if not folder.is_absolute():
            raise RequestError(f"the path {folder} is not absolute")
        try:
            config = json.loads((folder / "config.json").read_text())
        except OSError as error:
            raise Refused(f"failed to read {folder / 'config.json'}: {error.strerror}") from None
        except ValueError as error:
            raise Refused(f"{folder / 'config.json'} is not JSON: {error}") from None
        if not isinstance(config, dict):
            raise Refused(f"{folder / 'config.json'} is not a JSON object")
        if "quantization_config" in config:
            raise Refused(f"the weights in {folder} are quantised, and are trained in full", "name the original model")
        generation = folder / "generation_config.json"
        return cls(folder, config, generation.read_bytes() if generation.exists() else None)


class VocabularyHead:
    """Log-probabilities and entropies from hidden states: the head's weights, and what the model does to logits."""

    columns = ("logprob", "entropy")

    def __init__(self, module, chunk):
        output = module.get_output_embeddings()
        if not isinstance(output, torch.nn.Linear):
            raise Refused(f"{type(module).__name__} has no linear output head")
        self.output = output
        config = module.config.get_text_config()
        self.cap = getattr(config, "final_logit_softcapping", None)
        # Cohere and Falcon-H1 multiply, Granite divides.
        self.scale = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
        self.scale /= getattr(config, "logits_scaling", None) or 1.0
        self.chunk = chunk or chunk_tokens(output.weight.device, output.weight.shape[0])

    @property
    def vocab_size(self):
        """Number of tokens that have a logit."""
        return self.output.weight.shape[0]

    def __call__(self, hidden, targets, factor):
        """Columns of the tokens that these hidden states [N, D] predict."""
        constants = {"scale": self.scale, "cap": self.cap, "factor": factor, "chunk": self.chunk}
        return logprob_and_entropy(hidden, self.output.weight, self.output.bias, targets, **constants)

    @torch.no_grad()
    def check(self, module):
        """Refuses a model whose logits are not this head's of its decoder's last hidden states."""
        weight = self.output.weight
        generator = torch.Generator().manual_seed(1)
        hidden = torch.randn(8, weight.shape[1], generator=generator).to(weight.device)
        plain = logits(hidden.to(weight.dtype), weight, None, 1.0, None)
        # Large logits: bounds and other bends of the curve show.
        hidden = (hidden * (100.0 / plain.abs().max().clamp_min(1e-3))).to(weight.dtype)

        def replace(_module, _arguments, output):
            output.last_hidden_state = hidden[None]
            return output

        hook = module.base_model.register_forward_hook(replace)
        try:
            tokens = torch.zeros(1, 8, dtype=torch.int64, device=weight.device)
            theirs = module(input_ids=tokens, use_cache=False).logits[0].float()
        finally:
            hook.remove()
        ours = logits(hidden, weight, self.output.bias, self.scale, self.cap)
        if theirs.shape != ours.shape or not _is_close(theirs, ours, weight.dtype):
            message = f"{type(module).__name__} computes its logits in a way that this learner does not know"
            raise Refused(message, "models whose logits are a linear head's, scaled or soft-capped, can be trained")


class Network:
    """A decoder, its head, and its trained weights where it has any.

    `module` is what transformers made, `decoder` the part that gives hidden states, `weights` the
    `TrainedWeights` or `None` where it is frozen.
    """

    def __init__(self, module, decoder, head, source, options):
        self.module, self.decoder, self.head, self.source, self.options = module, decoder, head, source, options
        self.weights = None
        self.attention = None
        self.is_packed = True

    @property
    def config(self):
        """Configuration of the decoder of text."""
        return self.decoder.config.get_text_config()

    @property
    def vocab_size(self):
        """Number of tokens that may come in, and have a logit."""
        num_embedded = self.decoder.get_input_embeddings().weight.shape[0]
        return min(num_embedded, getattr(self.head, "vocab_size", num_embedded))

    @property
    def max_positions(self):
        """Longest sequence, or `None` where the model names no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def is_fused(self):
        """Whether the decoder holds some tensors otherwise than the files from which it was read."""
        return bool(getattr(self.module, "_weight_conversions", None))

    def describe(self):
        """What it is and how it computes, for a log."""
        dtype = next(name for name, one in DTYPES.items() if one == self.options.dtype)
        passed = "packed" if self.is_packed else "sequences one by one"
        sizes = self.sizes()
        trained = f"{sizes['num_trained']:,} of {sizes['num_parameters']:,} parameters are trained"
        return f"{self.source.folder}: {trained}, {dtype} on {self.options.device}, attention {self.attention}, {passed}"

    def sizes(self):
        """SIZES of the page."""
        return {
            "num_parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "num_trained": self.weights.num_parameters if self.weights else 0,
            "vocab_size": self.vocab_size,
            "max_positions": self.max_positions,
        }

    def hidden(self, one):
        """Last hidden states [M, D] of a pack."""
        output = self.decoder(
            input_ids=one.input_ids,
            position_ids=one.position_ids,
            use_cache=False,
            **attention.keywords(one, self.attention),
        )
        return output.last_hidden_state[0]

    def forward(self, wave, factor=1.0):
        """The head's columns over a wave, f32 [N] each; `factor` multiplies logits (1 / temperature)."""
        wave.check_fits(self.vocab_size, self.max_positions)
        if not wave.num_sequences:
            return tuple(torch.zeros(0, device=self.options.device) for _ in self.head.columns)
        device = self.options.device
        packs = [pack(wave, device)] if self.is_packed else pack_one_by_one(wave, device)
        parts = [self.head(self.hidden(one)[one.rows], one.targets, factor) for one in packs]
        return tuple(torch.cat(column) if len(column) > 1 else column[0] for column in zip(*parts, strict=True))

    def trained_parameters(self):
        """The parameters that take gradients, by their names in a file, each once."""
        return {name: one for name, one in self.module.named_parameters() if one.requires_grad}

    def file_tensors(self):
        """What a weights' file holds: `(name, shape, make)` of each tensor once, `make()` its f32 values."""
        masters = self.weights.masters if self.weights else {}
        return [
            (name, list(parameter.shape), lambda name=name, parameter=parameter: masters.get(name, parameter.data))
            for name, parameter in self.module.named_parameters()
        ]

    def choose_attention(self):
        """Takes the first attention that gives what the model's plain one gives; refuses a named one that does not."""
        wanted = self.options.attention
        if wanted == "auto":
            candidates = []
            # Models that flash kernels know tell them of windows and the like by keyword, as ours need it.
            if getattr(self.decoder, "_supports_flash_attn", False):
                on_gpu = self.options.device.type == "cuda" and self.options.dtype != torch.float32
                candidates = [attention.VARLEN] if on_gpu else [attention.SEQUENCES]
            candidates += ["sdpa", "eager"]
        else:
            candidates = [ATTENTIONS.get(wanted, wanted)]
        first, second = _probe(self.vocab_size, [5]), _probe(self.vocab_size, [7])
        both = _probe(self.vocab_size, [5, 7])
        try:
            truth = self._probe("eager", second)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            name = type(self.decoder).__name__
            raise Refused(f"{name} cannot be run over tokens and positions alone: {_first_line(error)}") from None
        if not self._agrees(truth[:4], self._probe("eager", _prefix(second, 4))):
            message = f"{type(self.decoder).__name__} is no decoder: its positions see what comes after them"
            raise Refused(message, "name a decoder-only model")
        truth = torch.cat([self._probe("eager", first), truth])
        why = "its numbers are not those of the model's plain attention"
        for is_packed in (True, False):
            for name in candidates:
                probes = [both] if is_packed else [first, second]
                try:
                    found = torch.cat([self._probe(name, one) for one in probes])
                except (attention.AttentionRefused, ImportError, KeyError, RuntimeError, TypeError, ValueError) as error:
                    why = _first_line(error)
                    continue
                if self._agrees(truth, found):
                    self.is_packed = is_packed
                    return
        message = f"attention `{wanted}` cannot be used with {type(self.decoder).__name__}: {why}"
        raise Refused(message, "choose `attention: auto`")

    @torch.no_grad()
    def _probe(self, name, one):
        self.decoder.set_attn_implementation(name)
        self.attention = name
        device = self.options.device
        one = Pack(one.input_ids.to(device), one.position_ids.to(device), one.offsets.to(device), one.lengths, None, None)
        return self.hidden(one).float()

    def _agrees(self, truth, found):
        return truth.shape == found.shape and _is_close(truth, found, self.options.dtype)

    def train(self, exact):
        """Makes trained weights of what takes gradients; `exact` has their f32 values."""
        parameters = self.trained_parameters()
        self.weights = TrainedWeights(parameters, exact) if parameters else None

    def recompute_layers(self):
        """Keeps only each layer's input for the backward pass and computes the rest again."""
        layers = [layer for layer in self.decoder.modules() if isinstance(layer, GradientCheckpointingLayer)]
        if not layers:
            name = type(self.decoder).__name__
            raise Refused(f"the layers of {name} cannot be computed again", "set recompute_activations to false")
        for layer in layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
            # Layers recompute in training mode alone. The flag is the layer's own, not that of what it consists of.
            layer.training = True

    def freeze(self):
        """A frozen copy as it is now."""
        module = copy.deepcopy(self.module).requires_grad_(False)
        head = VocabularyHead(module, self.options.logprob_chunk)
        frozen = Network(module, module.base_model, head, self.source, self.options)
        frozen.attention, frozen.is_packed = self.attention, self.is_packed
        return frozen


def _is_close(truth, found, dtype):
    return bool((truth - found).abs().max() <= _TOLERANCE[dtype] * truth.abs().max().clamp_min(1e-6))


def _probe(vocab_size, lengths):
    """A pack of made-up sequences, each a function of its length alone."""
    tokens = torch.cat([(torch.arange(n) * 7919 + n * 104729) % vocab_size for n in lengths])
    positions = torch.cat([torch.arange(n) for n in lengths])
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return Pack(tokens[None], positions[None], offsets, lengths, None, None)


def _prefix(one, length):
    offsets = torch.tensor([0, length], dtype=torch.int32)
    return Pack(one.input_ids[:, :length], one.position_ids[:, :length], offsets, [length], None, None)


def read_config(source):
    """The configuration as transformers reads it, without dropout."""
    try:
        config = AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises what it likes
        raise Refused(f"failed to read the configuration in {source.folder}: {_first_line(error)}") from None
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def load_module(source, kind, dtype, may_miss=lambda module: ()):
    """A model of transformers in evaluation mode on the host, every one of its weights read from the folder."""
    config = read_config(source)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        module, report = kind.from_pretrained(
            source.folder, config=config, dtype=dtype, attn_implementation="eager", local_files_only=True,
            trust_remote_code=False, use_safetensors=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        hint = "name a folder with a decoder-only model of transformers, its weights as safetensors"
        raise Refused(f"failed to load the model in {source.folder}: {_first_line(error)}", hint) from None
    missing = sorted(set(report["missing_keys"]) - set(may_miss(module)))
    if missing:
        raise Refused(f"tensor `{missing[0]}` is missing from {source.folder}")
    if report["mismatched_keys"]:
        name = sorted(map(str, report["mismatched_keys"]))[0]
        raise Refused(f"tensor `{name}` in {source.folder} has not the shape that its configuration makes it")
    return module.eval(), sorted(report["unexpected_keys"])


def _first_line(error):
    text = str(error).strip().splitlines()
    return textwrap.shorten(text[0], 300, placeholder=" ...") if text else type(error).__name__


def load_policy(folder, options, dtype=torch.float32):
    """A language model on the host; `place` makes it ready."""
    source = Source.read(folder)
    module, unexpected = load_module(source, AutoModelForCausalLM, dtype)
    unexpected = [name for name in unexpected if not is_spare(name)]
    if unexpected:
        raise Refused(f"tensor `{unexpected[0]}` in {source.folder} does not belong to this architecture")
    return Network(module, module.base_model, None, source, options)


def is_spare(name):
    """Whether a tensor may stand in a weights' file that the model does not have: a tied head, frequencies."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def place(network):
    """Moves a network to its device and type, gives it its head, and checks that it computes what it should.

    What it trains from here on are its parameters that take gradients.
    """
    options, module = network.options, network.module
    exact = {name: one.data.to(options.device, torch.float32) for name, one in network.trained_parameters().items()}
    # Buffers keep their type: the frequencies of rotary positions must not be rounded. So do a value head, and what
    # the model's authors name.
    module.to(options.device)
    kept = [*(getattr(module, "_keep_in_fp32_modules_strict", None) or ()), *CRITIC_HEAD]
    for name, parameter in module.named_parameters():
        if not set(kept) & set(name.split(".")):
            parameter.data = parameter.data.to(options.dtype)
    network.head = network.head or VocabularyHead(module, options.logprob_chunk)
    if isinstance(network.head, VocabularyHead):
        # While the model has the plain attention that it was loaded with.
        network.head.check(module)
    network.choose_attention()
    network.train(exact)


def load_reference(folder, options):
    """A frozen language model in the type that is computed in."""
    network = load_policy(folder, options, options.dtype)
    network.module.requires_grad_(False)
    place(network)
    return network
