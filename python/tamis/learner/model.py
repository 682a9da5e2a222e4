"""A decoder with a head, run forward over waves.

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
import textwrap
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from . import attention
from .head import VocabularyHead, is_close
from .packing import Pack, pack, pack_one_by_one
from .protocol import Refused
from .vision import Vision
from .weights import TrainedWeights

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# What is raised where an attention cannot be used with a model or on a machine.
_CANNOT_ATTEND = (attention.AttentionRefused, ImportError, KeyError, RuntimeError, TypeError, ValueError)
# What a user may name; anything else is passed on to transformers.
ATTENTIONS = {"varlen": attention.VARLEN, "sequences": attention.SEQUENCES}


@dataclass
class ComputeOptions:
    """How networks compute, from the options of `open`."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    logprob_chunk: int | None
    recompute: bool
    freeze_vision: bool = False


class Network:
    """A decoder, its head, and its trained weights where it has any.

    `module` is what transformers made, `decoder` the part that gives hidden states, `weights` the
    `TrainedWeights` or `None` where it is frozen. `vision` is the part that sees images, where there is one.
    """

    def __init__(self, module, decoder, head, source, options):
        self.module, self.decoder, self.head, self.source, self.options = module, decoder, head, source, options
        self.weights = None
        self.attention = None
        self.is_packed = True
        self.vision = None

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
        return (
            f"{self.source.folder}: {trained}, {dtype} on {self.options.device}, attention {self.attention}, {passed}"
        )

    def sizes(self):
        """SIZES of the page."""
        return {
            "num_parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "num_trained": self.weights.num_parameters if self.weights else 0,
            "vocab_size": self.vocab_size,
            "max_positions": self.max_positions,
        }

    def hidden(self, one, view=None, features=None, states=None):
        """Last hidden states [M, D] of a pack.

        `view` and `features` are of the images that it shows; `states`: a cache that keeps each layer's keys and
        values, without images.
        """
        keywords = {"use_cache": states is not None, **attention.keywords(one, self.attention)}
        if states is not None:
            keywords["past_key_values"] = states
        if self.vision is not None:
            embedded, positions = self.vision.embed(one, view, features), self.vision.positions(one, view)
            output = self.vision.text(inputs_embeds=embedded, position_ids=positions, **keywords)
        else:
            output = self.decoder(input_ids=one.input_ids, position_ids=one.position_ids, **keywords)
        return output.last_hidden_state[0]

    def forward(self, wave, factor=1.0):
        """The head's columns over a wave, f32 [N] each; `factor` multiplies logits (1 / temperature)."""
        wave.check_fits(self.vocab_size, self.max_positions)
        if not wave.num_sequences:
            return tuple(torch.zeros(0, device=self.options.device) for _ in self.head.columns)
        device = self.options.device
        packs = [pack(wave, device)] if self.is_packed else pack_one_by_one(wave, device)
        hidden = self._hidden_of(wave, packs)
        parts = [self.head(states[one.rows], one.targets, factor) for one, states in zip(packs, hidden, strict=True)]
        return tuple(torch.cat(column) if len(column) > 1 else column[0] for column in zip(*parts, strict=True))

    def _hidden_of(self, wave, packs):
        """Last hidden states of each pack of a wave, one after the other."""
        if self.vision is None:
            if wave.images is not None:
                message = f"{type(self.decoder).__name__} sees no images"
                raise Refused(message, "name a vision-language model (Qwen2-VL, Qwen2.5-VL), or data.images=false")
            return (self.hidden(one) for one in packs)
        S = wave.num_sequences
        ranges = [(0, S)] if self.is_packed else [(s, s + 1) for s in range(S)]
        views = [self.vision.view(wave, *sequences) for sequences in ranges]
        features = self.vision.features(wave)
        return (self.hidden(one, view, features) for one, view in zip(packs, views, strict=True))

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
        first, second = made_up(self.vocab_size, [5]), made_up(self.vocab_size, [7])
        both = made_up(self.vocab_size, [5, 7])
        try:
            truth = self._probe("eager", second)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            name = type(self.decoder).__name__
            raise Refused(f"{name} cannot be run over tokens and positions alone: {first_line(error)}") from None
        if not self.agrees(truth[:4], self._probe("eager", _prefix(second, 4))):
            message = f"{type(self.decoder).__name__} is no decoder: its positions see what comes after them"
            raise Refused(message, "name a decoder-only model")
        truth = torch.cat([self._probe("eager", first), truth])
        why = "its numbers are not those of the model's plain attention"
        for is_packed in (True, False):
            for name in candidates:
                probes = [both] if is_packed else [first, second]
                try:
                    found = torch.cat([self._probe(name, one) for one in probes])
                except _CANNOT_ATTEND as error:
                    why = first_line(error)
                    continue
                if self.agrees(truth, found):
                    self.is_packed = is_packed
                    return
        message = f"attention `{wanted}` cannot be used with {type(self.decoder).__name__}: {why}"
        raise Refused(message, "choose `attention: auto`")

    @torch.no_grad()
    def _probe(self, name, one):
        # A vision tower, whose attention is not causal, keeps its own.
        attending = self.decoder if self.vision is None else self.vision.text
        attending.set_attn_implementation(name)
        self.attention = name
        device = self.options.device
        one = Pack(
            one.input_ids.to(device), one.position_ids.to(device), one.offsets.to(device), one.lengths, None, None
        )
        return self.hidden(one).float()

    def agrees(self, truth, found):
        """Whether two ways to compute the same numbers agree, in the type that is computed in."""
        return truth.shape == found.shape and is_close(truth, found, self.options.dtype)

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
            # Layers recompute in training mode alone. The flag is the layer's own, not its parts'.
            layer.training = True

    def freeze(self):
        """A frozen copy as it is now."""
        module = copy.deepcopy(self.module).requires_grad_(False)
        head = VocabularyHead(module, self.options.logprob_chunk)
        frozen = Network(module, module.base_model, head, self.source, self.options)
        frozen.attention, frozen.is_packed = self.attention, self.is_packed
        if self.vision is not None:
            frozen.vision = Vision(frozen.decoder, self.vision.images)
        return frozen


def made_up(vocab_size, lengths):
    """A pack of made-up sequences, each a function of its length alone."""
    tokens = torch.cat([(torch.arange(n) * 7919 + n * 104729) % vocab_size for n in lengths])
    positions = torch.cat([torch.arange(n) for n in lengths])
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return Pack(tokens[None], positions[None], offsets, lengths, None, None)


def _prefix(one, length):
    offsets = torch.tensor([0, length], dtype=torch.int32)
    return Pack(one.input_ids[:, :length], one.position_ids[:, :length], offsets, [length], None, None)


def first_line(error):
    """What an exception says, in one line."""
    text = str(error).strip().splitlines()
    return textwrap.shorten(text[0], 300, placeholder=" ...") if text else type(error).__name__
