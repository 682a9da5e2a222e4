"""A decoder with a head, run forward over waves.

Weights, gradients and moments are f32. The decoder computes in f32 on a CPU and in bf16 on a GPU by default (see
`weights`).

Any decoder-only model of transformers may be named, so every assumption that could silently give wrong numbers is
tested. When a model is loaded, two made-up sequences and a few made-up hidden states are run through it, and compared
with its plain (`eager`) attention over one sequence at a time and with its own logits:

- a position sees nothing that comes later (otherwise the model is refused);
- an attention gives the same hidden states and the same gradient (otherwise the next one is tried);
- packed sequences have the numbers that they have by themselves (otherwise they are passed one by one);
- so have sequences that share a prompt (otherwise each has its own);
- the logits are the head's as `logprob` computes them (otherwise the model is refused).

Dropout is off: the decoder is never in training mode, and its configuration's rates are 0.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from . import attention, four_bits, rotary, sharding, tiles
from .device import is_device_lost, is_out_of_memory
from .head import VocabularyHead, is_close, tolerance
from .packing import Branch, Layout, Pack, pack, pack_one_by_one, take_rows
from .messages import first_line
from .protocol import Refused, Wave
from .vision import Vision
from .weights import TrainedWeights

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Errors that mean that an attention does not work with a model or on a machine.
_CANNOT_ATTEND = (
    attention.AttentionRefused, AssertionError, AttributeError, ImportError, IndexError, KeyError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
# Lengths of the test sequences: kernels use blocks of 64 or 128 tokens, some only for long rows.
_PROBED = (5, 133)
# Largest difference of hidden states and gradients (`_Margins`), however much the model amplifies rounding.
_MOST_APART = 0.6
# If rotary factors change behind at most so many tokens, the test sequence has both.
_LONGEST_PROBE = 1024
# Names for users; others are passed to transformers.
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
    # The ranks that share the weights out; `None`: this process has all.
    ranks: object = None
    # Whether this rank's part waits in the host's memory, and is copied to the device when a pass needs it.
    on_host: bool = False
    # Whether numbers must not depend on what is computed together (`tiles`).
    exact: bool = False

    def head_of(self, module):
        """The head of a language model."""
        tile = tiles.num_rows(self.device) if self.exact else None
        return VocabularyHead(module, self.logprob_chunk, self.device, tile)

    def together(self, act):
        """The result of `act`, or its error; with several ranks, any rank's error on all."""
        return act() if self.ranks is None else self.ranks.together(act)


class Network:
    """A decoder, its head, and its trained weights, if it has any.

    `module` is made by transformers, `decoder` is its part that gives hidden states, `weights` the `TrainedWeights`, or
    `None` if it is frozen. `vision` is the part that sees images, if there is one.
    """

    def __init__(self, module, decoder, head, source, options):
        self.module, self.decoder, self.head, self.source, self.options = module, decoder, head, source, options
        self.weights = None
        self.attention = None
        self.is_packed = True
        # Whether a pack has a prompt once, however many sequences have it.
        self.shares_prompts = False
        # The reason why not, if sequences are packed.
        self.unshared = None
        # Rejected attentions, with the reasons.
        self.passed_over = {}
        self.vision = None
        # What passes go through, and the module without its values, if weights are shared out over ranks.
        self.root = self.skeleton = None
        # The f32 values of frozen, rounded parameters, on the host, for checkpoints; this rank's rows of them.
        self.exact = {}
        # Names of modules that stay in f32.
        self.kept = frozenset()
        # Sources of the rows of parameters without values (`parts`).
        self.sources = {}
        # The reason why every rank has read all of it, if so.
        self.read_whole = None

    @property
    def config(self):
        """Configuration of the text decoder."""
        return self.decoder.config.get_text_config()

    @property
    def vocab_size(self):
        """Number of tokens that may be inputs, and have a logit."""
        num_embedded = self.decoder.get_input_embeddings().weight.shape[0]
        return min(num_embedded, getattr(self.head, "vocab_size", num_embedded))

    @property
    def max_positions(self):
        """Longest sequence, or `None` if the model has no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def is_fused(self):
        """Whether the decoder holds some tensors differently from its files."""
        return bool(getattr(self.module, "_weight_conversions", None))

    @property
    def has_own_head(self):
        """Whether there is an output head over the vocabulary that is not the embedding."""
        # A critic has no such attribute.
        output = getattr(self.module, "get_output_embeddings", lambda: None)()
        return output is not None and output.weight is not self.module.get_input_embeddings().weight

    def describe(self):
        """Model and way to compute, in lines for a log."""
        dtype = next(name for name, one in DTYPES.items() if one == self.options.dtype)
        passed = "packed" if self.is_packed else "sequences one by one"
        passed += ", prompts shared" if self.shares_prompts else ""
        sizes = self.sizes()
        trained = f"{sizes['num_trained']:,} of {sizes['num_parameters']:,} parameters are trained"
        where = f"{self.source.folder}: "
        lines = [f"{trained}, {dtype} on {self.options.device}, attention {self.attention}, {passed}"]
        lines += [f"attention {name} is not used: {why}" for name, why in self.passed_over.items()]
        in_four_bits = sum(four_bits.number_of(one) for one in self.module.parameters() if four_bits.is_quantised(one))
        if in_four_bits:
            lines.append(f"{in_four_bits:,} parameters are held in 4 bits (NF4)")
        if self.read_whole:
            lines.append(f"every rank has read all of it into memory: {self.read_whole}")
        if self.has_own_head and self.config.tie_word_embeddings:
            lines.append("its files hold an output head of its own, which is used though config.json ties it to the embedding")
        if self.unshared:
            lines.append(f"prompts are computed for each sequence: {self.unshared}")
        if rotary.depends_on_length(self.decoder):
            lines.append("its rotary positions depend on the length of a row, so sequences are not packed")
        return [where + line for line in lines]

    def sizes(self):
        """SIZES of the page."""
        return {
            "num_parameters": sum(four_bits.number_of(parameter) for parameter in self.module.parameters()),
            "num_trained": self.weights.num_parameters if self.weights else 0,
            "vocab_size": self.vocab_size,
            "max_positions": self.max_positions,
        }

    def hidden(self, one, view=None, features=None, states=None):
        """Last hidden states [M, D] of a pack.

        `view` and `features` belong to its images; `states`: a cache that keeps each layer's keys and values, without
        images.
        """
        if self.attention == attention.EXACT:
            return tiles.hidden(self, one, states)
        keywords = {"use_cache": states is not None, **attention.keywords(one, self.attention)}
        if states is not None:
            keywords["past_key_values"] = states
        if self.vision is not None:
            embedded, positions = self.vision.embed(one, view, features), self.vision.positions(one, view)
            output = self.vision.text(inputs_embeds=embedded, position_ids=positions, **keywords)
        else:
            output = self.decoder(input_ids=one.input_ids, position_ids=one.position_ids, **keywords)
        return output.last_hidden_state[0]

    def forward(self, wave, factor=1.0, top=None):
        """The head's columns over a wave, f32 [N] each, and [N, k] of its candidates; `factor` multiplies logits
        (1 / temperature). With `top`: log-probabilities, and so many likeliest tokens (see `VocabularyHead.top`).
        """
        wave.check_fits(self.vocab_size, self.max_positions)
        if self.root is None:
            return self._forward(wave, factor, top=top)
        # Every rank runs through all layers, even with nothing to compute.
        if not wave.num_sequences:
            return self.pass_nothing(wave.num_candidates, top)
        return self._forward_together(wave, factor, wave.num_tokens, top)

    def pass_nothing(self, num_candidates=0, top=None):
        """Columns without tokens, by a pass over one dummy token."""
        return self._forward_together(Wave.of_one_token(num_candidates), 1.0, 0, top)

    def _forward_together(self, wave, factor, num_tokens, top=None):
        # Passing sequences one by one gathers a layer's weights each time: ranks with fewer sequences add dummy passes.
        extra = 0
        if self.root is not None and not self.is_packed:
            own = max(1, wave.num_sequences)
            extra = self.options.ranks.most(own) - own
        # Copies in either case, so that all ranks reach their units in the same order in the backward pass.
        return self.through(lambda: tuple(column[:num_tokens].clone() for column in self._forward(wave, factor, extra, top)))

    def through(self, act):
        """The result of `act`, which computes with the module; with several ranks all of them call it."""
        return act() if self.root is None else self.root(act)

    def _agreed(self, found):
        """The first rank's finding, which all ranks use."""
        return found if self.options.ranks is None else self.options.ranks.first(found)

    def _forward(self, wave, factor, extra=0, top=None):
        """`extra`: passes over a dummy token, after the others."""
        if not wave.num_sequences:
            return self._no_columns(wave.num_candidates, top)
        device = self.options.device
        packs = [pack(wave, device, self.shares_prompts)] if self.is_packed else pack_one_by_one(wave, device)
        for _ in range(extra):
            packs += pack_one_by_one(Wave.of_one_token(wave.num_candidates), device)
        hidden = self._hidden_of(wave, packs)
        parts = [self._columns_of(one, take_rows(states, one.rows), factor, top) for one, states in zip(packs, hidden, strict=True)]
        return tuple(torch.cat(column) if len(column) > 1 else column[0] for column in zip(*parts, strict=True))

    def _columns_of(self, one, hidden, factor, top):
        if top is not None:
            return self.head.top(hidden, one.targets, factor, top)
        if one.candidates is None:
            return self.head(hidden, one.targets, factor)
        return self.head(hidden, one.targets, factor, one.candidates)

    def _no_columns(self, num_candidates, top):
        device = self.options.device
        if top is not None:
            ids = torch.zeros(0, top, dtype=torch.int64, device=device)
            return torch.zeros(0, device=device), ids, torch.zeros(0, top, device=device)
        columns = tuple(torch.zeros(0, device=device) for _ in self.head.columns)
        return (*columns, torch.zeros(0, num_candidates, device=device)) if num_candidates else columns

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

    def keeps(self, name):
        """Whether a parameter belongs to a module that stays in f32."""
        return not self.kept.isdisjoint(name.split("."))

    def keep_exact(self, name, values):
        """Keeps the values of a frozen parameter if rounding changes them."""
        exact = values.float()
        if not torch.equal(exact.to(self.options.dtype).float(), exact):
            self.exact[name] = exact.cpu()
        else:
            self.exact.pop(name, None)

    def frozen_parameters(self):
        """Parameters that take no gradients, by their names in a file."""
        return {name: one for name, one in self.module.named_parameters() if not one.requires_grad}

    def rows(self, name):
        """The rows of a parameter that this process holds."""
        if self.root is None:
            return slice(None)
        return slice(*sharding.rows_of(self.module.get_parameter(name).shape, self.options.ranks))

    def put_frozen(self, name, values):
        """Gives a frozen parameter these f32 values: the rows that this process holds."""
        parameter = self.module.get_parameter(name)
        if parameter.dtype != torch.float32:
            self.keep_exact(name, values)
        with torch.no_grad():
            sharding.local(parameter).copy_(values)

    def file_tensors(self):
        """The content of a weights' file: `(name, shape, make)` of each tensor once, `make()` its f32 values."""
        weights = self.weights

        def make(name, parameter):
            if weights and name in weights.masters:
                return lambda: weights.full(name, weights.masters[name])
            return lambda: self.exact.get(name, sharding.full(parameter.data))

        return [(name, list(one.shape), make(name, one)) for name, one in self.module.named_parameters()]

    def choose_attention(self):
        """Takes the first attention that gives the results of the model's plain one, forward and backward.

        A named one that does not is refused.
        """
        wanted = self.options.attention
        if self.options.exact:
            candidates = [attention.EXACT]
        elif wanted == "auto":
            candidates = attention.candidates(self.decoder, self.options.device.type, self.options.dtype)
        else:
            candidates = [ATTENTIONS.get(wanted, wanted)]
        # Machines may have different kernels: one that is missing anywhere is not used (`_try`).
        candidates = self._agreed(candidates)
        limit = self.max_positions or _LONGEST_PROBE
        lengths = [min(length, limit) for length in self._probe_lengths()]
        first, second = (made_up(self.vocab_size, [length]) for length in lengths)
        both = made_up(self.vocab_size, lengths)
        try:
            truth = self._probe("eager", second)
            half = lengths[1] // 2
            changed, _ = self._probe("eager", _with_other_end(second, half, self.vocab_size))
            truths = [self._probe("eager", first), truth]
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            pass_on(error)
            name = type(self.decoder).__name__
            message = f"{name} cannot be run on only tokens and positions: {first_line(error)}"
            raise Refused(message, "name a model that transformers runs so, such as a Llama or a Qwen") from None
        if not self._agreed(self.agrees(truth[0][:half], changed[:half])):
            message = f"{type(self.decoder).__name__} is no decoder: its positions see what comes after them"
            raise Refused(message, "name a decoder-only model")
        margins = self._agreed(self._margins(second, truth))
        failed = {}
        for is_packed in (True, False):
            if is_packed and rotary.depends_on_length(self.decoder):
                continue
            for name in candidates:
                why = self._agreed(self._try(name, [both] if is_packed else [first, second], truths, margins))
                if why is None and is_packed and not self._agreed(self._stands_apart(name, both, (0, lengths[0]))):
                    why = "packed sequences change each other's numbers"
                if why is None:
                    self.is_packed = is_packed
                    self.passed_over = {other: why for other, why in failed.items() if not is_packed or other != name}
                    self.unshared = self._agreed(self._cannot_share(name, lengths[1], margins)) if is_packed else None
                    self.shares_prompts = is_packed and self.unshared is None
                    if self.options.exact:
                        self._check_exact(first, both, lengths)
                    return
                failed.setdefault(name, why)
        message = f"attention `{wanted}` cannot be used with {type(self.decoder).__name__}: {failed[candidates[-1]]}"
        raise Refused(message, "set `learner.attention: auto`")

    def _probe_lengths(self):
        original = rotary.original_length(self.config)
        first, second = _PROBED
        return first, original + 5 if second < original + 5 <= _LONGEST_PROBE else second

    def _margins(self, one, truth):
        """Largest allowed difference between two attentions' results.

        In bf16 a deep model may amplify rounding (gradients that differ by a quarter were seen behind 30 layers), so
        the plain attention is measured with embeddings that are rounded differently.
        """
        hidden, gradient = tolerance(self.options.dtype), 2 * tolerance(self.options.dtype)
        if self.options.dtype == torch.float32:
            return _Margins(hidden, gradient)
        for seed in (1, 2):
            nudged = self._probe("eager", one, seed)
            hidden = max(hidden, 3 * _distance(truth[0], nudged[0]))
            gradient = max(gradient, 4 * _distance_by_norm(truth[1], nudged[1]))
        return _Margins(min(hidden, _MOST_APART), min(gradient, _MOST_APART))

    def _try(self, name, probes, truths, margins):
        """Why an attention is wrong over these packs, or `None`."""
        why = self._cannot_set(name)
        if why is not None:
            return why
        try:
            with attention.telling_windows() as told:
                found = [self._probe(name, one) for one in probes]
        except _CANNOT_ATTEND as error:
            pass_on(error)
            return first_line(error)
        num_windows = sum(window is not None for window in told)
        if name in attention.SHARING and num_windows < attention.windowed_layers(self.config) * len(probes):
            return "the model passes its window only by masks"
        hidden, gradient = (torch.cat(parts) for parts in zip(*found, strict=True))
        true_hidden, true_gradient = (torch.cat(parts) for parts in zip(*truths, strict=True))
        # Written so that NaN counts as too far.
        if not _distance(true_hidden, hidden) <= margins.hidden:
            return "its numbers are not those of the model's plain attention"
        if not _distance_by_norm(true_gradient, gradient) <= margins.gradient:
            return "its gradients are not those of the model's plain attention"
        return None

    @torch.no_grad()
    def _check_exact(self, first, both, lengths):
        """Refuses a network whose numbers depend on a token's place, which `learner.exact` excludes."""
        self._set_attention(attention.EXACT)
        second = made_up(self.vocab_size, lengths[1:])
        pairs = [(first, both, slice(lengths[0])), (second, both, slice(lengths[0], sum(lengths)))]
        if self.shares_prompts:
            shared, apart, row_of = made_up_branches(self.vocab_size, lengths[1])
            ends = len(apart[0].position_ids[0])
            pairs += [(apart[0], shared, row_of[:ends]), (apart[1], shared, row_of[ends:])]
        tiles.check(self, [(self._on_device(alone), self._on_device(together), rows) for alone, together, rows in pairs])

    def _on_device(self, one):
        """A made-up pack on the network's device."""
        device = self.options.device
        layout = one.layout and Layout(one.layout.branches, device)
        return Pack(
            one.input_ids.to(device), one.position_ids.to(device), one.offsets.to(device), one.lengths, None, None, layout
        )

    def _cannot_share(self, name, length, margins):
        """Why two sequences that share a prompt in a pack do not have the numbers of two that do not, or `None`."""
        if name not in attention.SHARING:
            return f"{name} does not know of it"
        if self.vision is not None:
            return "the model sees images"
        shared, apart, row_of = made_up_branches(self.vocab_size, length)
        truths = [self._probe("eager", one) for one in apart]
        truth, gradient = (torch.cat(parts) for parts in zip(*truths, strict=True))
        row_of = row_of.to(gradient.device)
        summed = torch.zeros(len(shared.position_ids[0]), gradient.shape[1], device=gradient.device)
        summed.index_add_(0, row_of, gradient)
        self._set_attention(name)
        try:
            found, found_gradient = self._probe(name, shared, rows=row_of)
        except _CANNOT_ATTEND as error:
            pass_on(error)
            return first_line(error)
        is_near = _distance(truth, found) <= margins.hidden
        if not (is_near and _distance_by_norm(summed, found_gradient) <= margins.gradient):
            return "the numbers are not those behind a prompt of their own"
        _, first, _ = shared.layout.branches
        if not self._stands_apart(name, shared, (first.begin, first.end)):
            return "completions change each other's numbers"
        return None

    def _stands_apart(self, name, one, rows):
        """Whether these rows of a pack have the same numbers, row by row, with other tokens after them."""
        begin, end = rows
        tokens = one.input_ids.clone()
        tokens[:, begin:end] = (tokens[:, begin:end] + 1) % self.vocab_size
        truth, found = (self._probe(name, each)[0][end:] for each in (one, replace(one, input_ids=tokens)))
        distance = (truth - found).norm(dim=1) / truth.norm(dim=1).clamp_min(1e-6)
        return float(distance.max()) <= tolerance(self.options.dtype)

    def _cannot_set(self, name):
        """Why the model cannot use an attention of this name, on any rank, or `None`."""
        try:
            self._set_attention(name)
            why = None
        except _CANNOT_ATTEND as error:
            pass_on(error)
            why = first_line(error)
        return why if self.options.ranks is None else self.options.ranks.any(why)

    def _set_attention(self, name):
        # A vision tower keeps its own attention, which is not causal.
        attending = self.decoder if self.vision is None else self.vision.text
        attending.set_attn_implementation(name)
        self.attention = name

    def _probe(self, name, one, seed=None, rows=None):
        """Last hidden states of a pack, f32 [M, D], and the gradient by embeddings [M, D] of a sum over them.

        With a seed, embeddings are rounded differently: each number is larger or smaller by 2^-8. With `rows`, the
        states are these rows' [R, D], and so is the sum.
        """
        self._set_attention(name)
        device, one = self.options.device, self._on_device(one)
        embedded = []

        def embed(_module, _arguments, output):
            output = output.detach()
            if seed is not None:
                signs = torch.randint(2, output.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
                # In f32: 1 + 2^-8 is 1 in bf16.
                output = (output.float() * (1 + signs * 2.0**-8).to(output.device)).to(output.dtype)
            embedded.append(output.requires_grad_())
            # Some decoders change their input in place.
            return embedded[-1].clone()

        hook = self.decoder.get_input_embeddings().register_forward_hook(embed)
        try:
            with torch.enable_grad():
                # A copy: PyTorch's sharding adds hooks to a pass's output, and warns if it is a view.
                hidden = self.through(lambda: self.hidden(one).clone()).float()
                positions = one.position_ids[0]
                if rows is not None:
                    hidden, positions = hidden[rows], positions[rows]
                # A position's weight depends only on its place in its sequence.
                width = torch.arange(hidden.shape[1], device=device)
                factors = torch.sin(positions[:, None] * 7.0 + width * 3.0)
                # By the embeddings only: no parameter gets a gradient.
                gradients = torch.autograd.grad((hidden * factors).sum(), embedded)
        except Exception:
            if self.root is not None:
                # All ranks stop at the same place.
                self.root.reset_iter_state()
            raise
        finally:
            hook.remove()
        gradient = torch.cat([part.float().reshape(-1, part.shape[-1]) for part in gradients])
        return hidden.detach(), gradient[: one.position_ids.shape[1]]

    def agrees(self, truth, found):
        """Whether two ways to compute the same numbers agree, in the type of passes."""
        return truth.shape == found.shape and is_close(truth, found, self.options.dtype)

    def train(self, exact):
        """Makes trained weights of the parameters that take gradients; `exact` has their f32 values."""
        parameters = self.trained_parameters()
        self.weights = TrainedWeights(parameters, exact) if parameters else None

    def recompute_layers(self):
        """Keeps only each layer's input for the backward pass and recomputes the rest."""
        layers = [layer for layer in self.decoder.modules() if isinstance(layer, GradientCheckpointingLayer)]
        if not layers:
            name = type(self.decoder).__name__
            raise Refused(f"the layers of {name} cannot be computed again", "set `model.recompute_activations: false`")
        for layer in layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
            # Layers recompute only in training mode. The flag is the layer's own, not its parts'.
            layer.training = True

    def computes_as(self, other):
        """Uses the attention of another network with the same layers, and its modules that stay in f32."""
        self.kept = other.kept
        self._set_attention(other.attention)
        self.is_packed, self.shares_prompts = other.is_packed, other.shares_prompts

    def freeze(self, on_host=False):
        """A frozen copy of the present network; `on_host` as in the options."""
        module, sources = (copy.deepcopy(self.module), {}) if self.root is None else sharding.hollow_copy(self)
        module.requires_grad_(False)
        head = self.options.head_of(module)
        frozen = Network(module, module.base_model, head, self.source, replace(self.options, on_host=on_host))
        frozen.sources = sources
        if self.vision is not None:
            frozen.vision = Vision(frozen.decoder, self.vision.images)
        frozen.computes_as(self)
        if self.root is not None:
            sharding.shard(frozen)
        return frozen


def made_up(vocab_size, lengths):
    """A pack of made-up sequences; each depends only on its length."""
    tokens = torch.cat([(torch.arange(n) * 7919 + n * 104729) % vocab_size for n in lengths])
    positions = torch.cat([torch.arange(n) for n in lengths])
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return Pack(tokens[None], positions[None], offsets, lengths, None, None)


def made_up_branches(vocab_size, length):
    """Two made-up sequences of about `length` tokens with one shared prompt.

    Returns that pack, packs of each with a prompt of its own, and the row of the first for each row of the others.
    """
    prompt, first, second = length * 2 // 3, length - length * 2 // 3, max(1, length // 5)
    whole = made_up(vocab_size, [prompt + first + second])
    tokens, positions = whole.input_ids[0], torch.arange(prompt)
    ends = [(prompt, prompt + first), (prompt + first, prompt + first + second)]
    positions = torch.cat([positions, *(prompt + torch.arange(end - begin) for begin, end in ends)])
    row_of = [torch.cat([torch.arange(prompt), torch.arange(*end)]) for end in ends]
    branches = [Branch((0, 0), 0, prompt), *(Branch((0, prompt), *end) for end in ends)]
    lengths = [branch.end - branch.begin for branch in branches]
    shared = Pack(tokens[None], positions[None], whole.offsets, lengths, None, None, Layout(branches, None))
    apart = [
        Pack(tokens[rows][None], torch.arange(len(rows))[None], torch.tensor([0, len(rows)]).int(), [len(rows)], None, None)
        for rows in row_of
    ]
    return shared, apart, torch.cat(row_of)


@dataclass(frozen=True)
class _Margins:
    """Largest differences of two ways to compute the same: `_distance` of hidden states, `_distance_by_norm` of
    gradients.
    """

    hidden: float
    gradient: float


def _distance(truth, found):
    """Largest difference, relative to the largest number."""
    return float((truth - found).abs().max() / truth.abs().max().clamp_min(1e-6))


def _distance_by_norm(truth, found):
    """Norm of the difference, relative to the norm."""
    return float((truth - found).norm() / truth.norm().clamp_min(1e-6))


def _with_other_end(one, begin, vocab_size):
    """A pack of one sequence of the same length, with other tokens from here on."""
    tokens = torch.cat([one.input_ids[:, :begin], (one.input_ids[:, begin:] + 1) % vocab_size], 1)
    return Pack(tokens, one.position_ids, one.offsets, one.lengths, None, None)


def pass_on(error):
    """Raises again errors that do not concern the attention: a lost device, or too little memory."""
    if is_device_lost(error) or is_out_of_memory(error):
        raise error
