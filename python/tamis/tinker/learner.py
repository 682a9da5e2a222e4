"""The calls of docs/learner-protocol.md over a model at a server of Tinker's API.

`backward` keeps derivatives until `optim_step`, which sends all of them together with the step: servers divide by what
a step contains, and each request costs a turn.
"""

import math
import pathlib
import types
from dataclasses import dataclass

from ..learner import session
from ..learner.messages import (
    Failed,
    FilesError,
    LearnerError,
    Lost,
    Refused,
    RequestError,
    StateError,
    calls_of,
    refuse_columns,
)
from . import api, checkpoint
from .api import ServerRefused
from .columns import Limits, column, take, take_places, take_rows, take_wave
from .probe import SAME_LOGPROBS, probe
from .sampling import Samples
from .training import GO_ON, Adam, Derivatives, Model, cut, grad_norm

# Largest whole number that every server takes as a seed.
_SEEDS = 1 << 31
_STOP, _LENGTH = 1, 2
_NO_CRITIC = "a model behind Tinker's API has no critic"


@dataclass
class _Held:
    """A pass that waits for its derivatives."""

    wave: list
    logprobs: list


class Session(session.Session):
    """The session of `tamis-learner/1` with the controller; the session with the server is an `api.Session`."""

    implementation = "tamis tinker"

    def probe(self):
        """Measures the server's behaviour before anything is asked of it."""
        self.learner.probe(self.log)
        self._facts = self._gather_facts()


class Learner:
    """Holds one model at the server, and a second one that never learns once the base model is needed."""

    num_ranks = 1

    def __init__(self, server, base_model, rank, seed, findings=None):
        self._api, self._base_model, self._rank, self._seed = server, base_model, rank, seed
        self._findings = findings
        self.transfer = types.SimpleNamespace(calls={})
        self.calls = calls_of(self)
        self._samples = None
        self._forget()

    def probe(self, log):
        """Measures the server's behaviour."""
        api.begin(self._api, self._base_model)
        self._findings = probe(self._api, self._base_model, self._rank, self._seed)
        for line in self._findings.describe():
            log(line)

    def _forget(self):
        # `_copy`: the policy's weights in a model whose moments are not used.
        self._policy = self._base = self._copy = None
        self._held = self._limits = self._sampler = self._samples = None
        self._pending = []
        self._num_steps = self._num_parameters = 0

    @property
    def is_holding(self):
        """Whether a pass waits for its derivatives."""
        return self._held is not None

    def device(self):
        """Where the model is, for people."""
        return f"{self._base_model} at {self._api.url}"

    def wait(self):
        """Nothing: every call has its result when it is answered."""

    def describe(self):
        """The loaded model, in lines for a log."""
        return [f"a new adapter of rank {self._rank} on {self._base_model}: {self._policy.id}"]

    def capabilities(self):
        """The capabilities in `info`."""
        return {
            "critic": False,
            "lora": False,
            "publish": [],
            "generate": True,
            "dtypes": [self._dtype()],
            "entropy": False,
            "weights": False,
        }

    def _dtype(self):
        is_coarse = self._findings is not None and self._findings.difference > SAME_LOGPROBS
        return "bf16" if is_coarse else "f32"

    def close(self):
        """Frees its places at the server."""
        if self._samples is not None:
            self._samples.close()
        for model in (self._policy, self._base, self._copy):
            if model is not None:
                model.leave()
        self._forget()

    # Opening

    def open(self, settings, columns, may_adopt=False):
        """Begins a model with the base model's weights."""
        refuse_columns(columns)
        folder = settings.text("policy")
        temperature = settings.number("temperature", above=0.0)
        adam = _read_optimizer(settings.object("optimizer"))
        critic = settings.object("critic", None)
        reference = settings.text("reference", None)
        teachers = settings.texts("teachers", [])
        generation = settings.object("generation", None)
        max_sequences = None
        if generation is not None:
            max_sequences = generation.count("max_sequences", least=1)
            generation.finish()
        if settings.flag("recompute_activations", False):
            self._api.log("`model.recompute_activations` has no effect: the server decides what it keeps")
        options = settings.object("options", None)
        settings.finish()
        for path in (folder, reference, *teachers):
            if path is not None and not path.startswith("/"):
                raise RequestError(f"the path {path} is not absolute")
        if options is not None and options.others_than():
            name = next(iter(options.others_than()))
            hint = "set `learner.backend: native`: there are no options here"
            raise RequestError(f"`options` has the unknown key `{name}`", hint)
        self._refuse(temperature, adam, critic, reference, teachers)
        config = checkpoint.read_json(pathlib.Path(folder) / checkpoint.CONFIG)
        limits = _read_limits(folder, config)
        self.close()
        self._policy = self._new_model()
        self._adam, self._limits, self._folder = adam, limits, pathlib.Path(folder)
        self._num_parameters = checkpoint.num_parameters(self._folder)
        if max_sequences is not None:
            self._samples = Samples(self._api, max_sequences, limits.vocab_size)
        return {"dtype": self._dtype(), "adopted": False, **self._networks()}, {}

    def _refuse(self, temperature, adam, critic, reference, teachers):
        url = self._api.url
        if temperature != 1.0:
            message = f"log-probabilities at {url} are those of temperature 1, and {temperature} is asked for"
            raise Refused(message, "set `rollout.temperature: 1`")
        if adam.max_grad_norm is not None and not self._findings.clips:
            message = f"{url} does not clip gradients, and a norm of at most {adam.max_grad_norm} is asked for"
            raise Refused(message, "set `train.optimizer.max_grad_norm: null`")
        if critic is not None:
            raise Refused(_NO_CRITIC, "choose an advantage without a critic, such as `grpo`")
        if reference is not None:
            raise Refused("the reference can only be the base model", "set `model.reference: null`")
        if teachers:
            hint = "take the base model (`teacher: [{}]`), or a teacher at servers"
            raise Refused("a teacher that the learner loads can only be the base model", hint)

    def _networks(self):
        limits = self._limits
        sizes = {"num_parameters": self._num_parameters, "num_trained": 0, "vocab_size": limits.vocab_size}
        policy = {**sizes, "max_positions": limits.max_positions}
        return {"policy": policy, "critic": None, "num_steps": self._num_steps, "shares_prompts": False}

    def _opened(self):
        if self._policy is None:
            raise StateError("the learner holds no model", "open it")
        return self._policy

    def _new_model(self):
        return Model(api.Session(self._api), self._base_model, self._rank, self._seed)

    def _refuse_critic(self, settings):
        if settings.choice("network", ["policy", "critic"]) == "critic":
            raise Refused(_NO_CRITIC, "choose an advantage without a critic, such as `grpo`")

    # Passes

    def forward(self, settings, columns):
        """Log-probabilities of a wave under the policy, or under the base model."""
        name = settings.choice("network", ["policy", "before", "reference", "base", "critic"])
        sharpness = settings.number("sharpness", 1.0, above=0.0)
        wave = self._wave(settings, columns)
        if name == "critic":
            raise Refused(_NO_CRITIC, "choose an advantage without a critic, such as `grpo`")
        if sharpness != 1.0:
            raise Refused("passes at the server are only at temperature 1", "choose an advantage that needs no other")
        if name == "reference":
            raise StateError("the learner has no reference", "the network `base` is the one that there is")
        if name == "base" and self._base is None:
            self._base = self._new_model()
        model = self._base if name == "base" else self._opened()
        return {}, _logprob_column(model.forward(wave))

    def _wave(self, settings, columns):
        images = settings.lists_of_texts("images", None)
        settings.finish()
        self._opened()
        if images is not None and any(images):
            raise Refused("images are not sent to Tinker's API", "take a learner in PyTorch (`learner.backend: torch`)")
        return take_wave(columns, self._limits)

    def forward_hold(self, settings, columns):
        """Log-probabilities of a wave, whose derivatives will follow."""
        self._refuse_critic(settings)
        wave = self._wave(settings, columns)
        self._held = None
        logprobs = self._opened().forward(wave)
        self._held = _Held(wave, logprobs)
        return {}, _logprob_column(logprobs)

    def backward(self, settings, columns):
        """Keeps the derivatives of the held pass for the step."""
        discard = settings.flag("discard", False)
        settings.finish()
        if discard:
            refuse_columns(columns)
            self._held = None
            return {}, {}
        held = self._held
        if held is None:
            raise StateError("no pass is held")
        if "entropy" in columns:
            hint = "take the entropy bonus out: `objective.entropy: null`"
            raise Refused("the server gives no entropies, and takes no derivatives by them", hint)
        derivatives = take(columns, "logprob", "F32")
        refuse_columns(columns)
        num_tokens = sum(map(len, held.logprobs))
        if len(derivatives) != num_tokens:
            message = f"column `logprob` has {len(derivatives)} numbers, and the held pass {num_tokens} tokens"
            raise RequestError(message)
        self._held, begin = None, 0
        for sequence, logprobs in zip(held.wave, held.logprobs, strict=True):
            end = begin + len(logprobs)
            self._pending.append(Derivatives(sequence, logprobs, derivatives[begin:end]))
            begin = end
        return {}, {}

    # Steps

    def optim_step(self, settings, columns):
        """Sends the derivatives and the step."""
        refuse_columns(columns)
        learning_rate = settings.number("learning_rate", least=0.0)
        self._refuse_critic(settings)
        settings.finish()
        model, pending = self._opened(), self._take_pending()
        if pending is None:
            # A server would take such a step, and have no finite weight left.
            return {"skipped": True, "num_steps": self._num_steps}, _norm_column(math.nan)
        self._note_moved()
        try:
            norm = self._step(model, pending, learning_rate)
        except Lost:
            raise
        except LearnerError as error:
            message = "the step and its passes go together, so the weights there may be of a part of the mini-batch"
            hint = f"{error.hint}; then {GO_ON}" if error.hint else GO_ON
            raise Failed(f"{error.message}: {message}", hint) from None
        if not math.isfinite(norm):
            message = f"{self._api.url} took a step by a gradient that is not finite: the weights there are lost"
            model.spoil(message)
            raise Failed(message, f"{GO_ON}, with a lower train.optimizer.learning_rate")
        self._num_steps += 1
        return {"skipped": False, "num_steps": self._num_steps}, _norm_column(norm)

    def _take_pending(self):
        """Takes the derivatives of a step; `None` if one of them is not finite."""
        if self._held is not None:
            raise StateError("a pass of this network is held", "send its derivatives, or discard it")
        if not self._pending:
            raise StateError("there are no derivatives to step by", "send some with `backward`")
        pending, self._pending = self._pending, []
        return pending if all(one.is_finite for one in pending) else None

    def _step(self, model, pending, learning_rate):
        """The norm of the gradient of a step; NaN if it is not finite."""
        # A sequence without a gradient costs a pass; without any gradient a server may divide by zero.
        taught = [one for one in pending if not one.is_zero] or pending[:1]
        calls = cut(taught, lambda one: one.sequence)
        norm = grad_norm(model.step(calls, self._adam, learning_rate, self._findings.reduction.divisor))
        return math.nan if norm is None else norm

    def _note_moved(self):
        """The weights have changed: open samples are sampled again."""
        self._sampler = None
        if self._copy is not None:
            self._copy.leave()
            self._copy = None
        if self._samples is not None:
            self._samples.begin_anew()

    def grad_norm(self, settings, columns):
        """The gradient's norm, by a step at learning rate 0 of a copy: a step of the policy would change its moments.
        """
        refuse_columns(columns)
        self._refuse_critic(settings)
        settings.finish()
        model = self._opened()
        if not self._pending and self._held is None:
            return {}, _norm_column(0.0)
        pending = self._take_pending()
        if pending is None:
            return {}, _norm_column(math.nan)
        if self._copy is not None and self._copy.is_spoilt:
            self._copy.leave()
            self._copy = None
        if self._copy is None:
            path = model.save()
            self._copy = self._new_model()
            self._load(self._copy, path)
        return {}, _norm_column(self._step(self._copy, pending, 0.0))

    def keep(self, settings, columns):
        """Refuses: weights cannot be set aside."""
        _finish(settings, columns)
        raise Refused("weights at the server cannot be set aside", "set `schedule.early_updates: false`")

    def restore(self, settings, columns):
        """Nothing was set aside."""
        _finish(settings, columns)
        return self._networks(), {}

    def copy(self, settings, columns):
        """Refuses: there is no critic, and no reference but the base model."""
        refuse_columns(columns)
        settings.choice("to", ["reference", "critic"])
        settings.finish()
        raise Refused("weights at the server cannot be copied", "the network `base` is the reference that there is")

    def reset_optimizer(self, settings, columns):
        """Loads the weights again without their moments."""
        refuse_columns(columns)
        self._refuse_critic(settings)
        settings.finish()
        if self._num_steps > 0:
            self._take(self._opened().save(), has_optimizer=False)
        self._num_steps = 0
        return {}, {}

    def check(self, settings, columns):
        """Nothing: the weights are not here, and the step reports numbers that are not finite."""
        _finish(settings, columns)
        return {"not_finite": None}, {}

    # Weights out and in

    def publish(self, settings, columns):
        """Versions do not matter here: samples are always of the present weights."""
        refuse_columns(columns)
        settings.count("version")
        settings.finish()
        return {}, {}

    def save(self, settings, columns):
        """Has the server save weights and moments, and writes their path."""
        refuse_columns(columns)
        folder = settings.text("folder")
        content = settings.choice("content", ["weights", "adapter", "handles", "transfer", "checkpoint"])
        settings.choice("dtype", ["f32", "bf16", "f16"], "f32")
        settings.flag("untied", False)
        settings.finish()
        if not folder.startswith("/"):
            raise RequestError(f"the path {folder} is not absolute")
        if content != "checkpoint":
            raise Refused("weights stay at the server", "sample in the learner (`rollout.backend: learner`)")
        model = self._opened()
        place = checkpoint.Place(
            path=model.save(),
            adapter=model.save_adapter(),
            url=self._api.url,
            base_model=self._base_model,
            rank=self._rank,
            num_steps=self._num_steps,
            num_parameters=self._num_parameters,
        )
        return {"files": checkpoint.write(pathlib.Path(folder), self._folder, place), "overflow": None}, {}

    def load(self, settings, columns):
        """Loads the weights and moments of a checkpoint."""
        refuse_columns(columns)
        folder = settings.text("folder")
        content = settings.choice("content", ["checkpoint", "reference"])
        settings.finish()
        if content == "reference":
            raise Refused("the reference can only be the base model", "set `model.reference: null`")
        if not folder.startswith("/"):
            raise RequestError(f"the path {folder} is not absolute")
        self._opened()
        place = checkpoint.read(folder)
        file = f"{folder}/{checkpoint.ELSEWHERE}"
        if (place.base_model, place.rank) != (self._base_model, self._rank):
            hint = f"start it with --base-model {place.base_model} --rank {place.rank}"
            message = (
                f"the checkpoint is an adapter of rank {place.rank} on {place.base_model}, and the learner has rank "
            )
            raise FilesError(f"{message}{self._rank} on {self._base_model}", file, hint)
        try:
            self._api.call("weights_info", {"tinker_path": place.path})
        except ServerRefused as error:
            hint = f"the server decides how long weights are kept; the run was at {place.url}"
            raise FilesError(f"{self._api.url} has no {place.path}: {error.message}", file, hint) from None
        self._take(place.path)
        self._held, self._pending = None, []
        self._num_steps = place.num_steps
        self._num_parameters = self._num_parameters or place.num_parameters
        return self._networks(), {}

    def _take(self, path, has_optimizer=True):
        """A model with the weights of a path: servers load them only into a new model."""
        self._note_moved()
        if not self._policy.is_fresh:
            # First, because there may be no place for another.
            self._policy.unload()
            self._policy = self._new_model()
        self._load(self._policy, path, has_optimizer)

    def _load(self, model, path, has_optimizer=True):
        try:
            model.load(path, has_optimizer)
        except LearnerError:
            model.spoil(f"a model at {self._api.url} did not take the weights of {path}")
            raise

    # Generation

    def generate(self, settings, columns):
        """Begins samples, gives some up, and waits for the first that ends."""
        seconds = settings.number("seconds", least=0.0)
        drawings = [_read_drawing(drawing) for drawing in settings.objects("drawing", [])]
        settings.finish()
        model = self._opened()
        if self._samples is None:
            raise Refused("the learner was not opened to generate", "open it with `generation`")
        prompts = take_rows(columns, "prompt")
        numbers, keys = take(columns, "sample", "I64"), take(columns, "key", "I64")
        drawn_by = take_places(columns, "prompt_drawing", len(prompts), len(drawings))
        prompt_of = take_places(columns, "prompt_of", len(numbers), len(prompts))
        aborted = take(columns, "abort", "I64")
        refuse_columns(columns)
        if len(keys) != len(numbers):
            raise RequestError(f"`key` has {len(keys)} numbers, and there are {len(numbers)} samples")
        if len(set(numbers)) < len(numbers):
            raise RequestError("a sample is repeated")
        for at, prompt in enumerate(prompts):
            Limits(self._limits.vocab_size, None).check(prompt, f"prompt {at}")
        for number in aborted:
            self._samples.abort(number)
        for number in numbers:
            if number in self._samples:
                raise RequestError(f"sample {number} is open already")
        most, full = self._limits.max_positions, []
        for number, key, place in zip(numbers, keys, prompt_of, strict=True):
            prompt = prompts[place]
            if most is not None and len(prompt) >= most:
                reason = f"its prompt has {len(prompt)} tokens, and the model {most} positions"
                full.append({"sample": number, "reason": reason})
                continue
            drawing = drawings[drawn_by[place]]
            self._samples.begin(number, prompt, {**drawing, "seed": key % _SEEDS})
        if self._sampler is None and self._samples.num_open:
            self._sampler = model.sampler()
        return self._generated(self._samples.wait(self._sampler, 0.0 if full else seconds), full)

    def _generated(self, ended, refused):
        grown = []
        for number, found in ended:
            if isinstance(found, LearnerError):
                refused.append({"sample": number, "reason": found.message})
            elif not found.tokens:
                refused.append({"sample": number, "reason": f"{self._api.url} gave no token"})
            else:
                grown.append((number, found))
        offsets = [0]
        for _, found in grown:
            offsets.append(offsets[-1] + len(found.tokens))
        answer = {
            "sample": column("I64", [number for number, _ in grown]),
            "end": column("I32", [_STOP if found.is_stopped else _LENGTH for _, found in grown]),
            "token": column("I32", [token for _, found in grown for token in found.tokens]),
            "token_offset": column("I64", offsets),
            "logprob": column("F32", [number for _, found in grown for number in found.logprobs]),
        }
        return {"num_open": self._samples.num_open, "refused": refused}, answer


def _norm_column(norm):
    return {"grad_norm": column("F64", [norm])}


def _logprob_column(rows):
    return {"logprob": column("F32", [number for row in rows for number in row])}


def _read_limits(folder, config):
    """Sizes from the configuration of a model's text part."""
    text = config.get("text_config")
    text = text if isinstance(text, dict) else {}

    def of(name):
        found = text.get(name, config.get(name))
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    if of("vocab_size") is None:
        path = f"{folder}/{checkpoint.CONFIG}"
        raise FilesError(f"{path} has no `vocab_size`", path)
    return Limits(of("vocab_size"), of("max_position_embeddings"))


def _read_optimizer(settings):
    adam = Adam(
        settings.number("beta1", least=0.0, below=1.0),
        settings.number("beta2", least=0.0, below=1.0),
        settings.number("epsilon", least=0.0),
        settings.number("weight_decay", least=0.0),
        settings.number("max_grad_norm", None, above=0.0),
    )
    # An adapter has no norms and biases.
    settings.flag("decay_norms_and_biases")
    settings.finish()
    return adam


def _read_drawing(settings):
    """The API's parameters for drawing samples."""
    temperature = settings.number("temperature", least=0.0)
    if temperature != 0.0 and not 1e-6 <= temperature <= 1e6:
        raise RequestError(f"`temperature` must be 0 or from 1e-6 to 1e6, and is {temperature}")
    top_k = settings.count("top_k")
    top_p = settings.number("top_p", above=0.0)
    min_p = settings.number("min_p", least=0.0)
    penalty = settings.number("repetition_penalty", above=0.0)
    max_tokens = settings.count("max_tokens", least=1)
    ends = settings.counts("end_tokens")
    settings.finish()
    for name, value in (("top_p", top_p), ("min_p", min_p)):
        if value > 1.0:
            raise RequestError(f"`{name}` must be at most 1, and is {value}")
    for name, value, plain in (("min_p", min_p, 0.0), ("repetition_penalty", penalty, 1.0)):
        if value != plain:
            raise Refused(f"Tinker's API samples without `{name}`", f"set `rollout.{name}: {plain:g}`")
    stop = {"stop": ends} if ends else {}
    return {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k or -1, "top_p": top_p, **stop}


def _finish(settings, columns):
    refuse_columns(columns)
    settings.finish()
