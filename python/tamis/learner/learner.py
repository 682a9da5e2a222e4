"""The calls of the wire over a policy, a critic, a reference and teachers.

Each call is a method of `Learner` that takes settings and columns and returns settings and columns. The server ensures
that one runs at a time, and each once.
"""

import contextlib
import gc
import importlib.util
from dataclasses import dataclass, replace

import torch

from . import checkpoint, critic, handles, loading, lora, messages, model, protocol, transfer
from .device import take_device
from .generate import make_generation
from .optimizer import AdamW, AdamWSettings
from .protocol import Refused, RequestError, Settings, StateError, Wave
from .weights import first_not_finite
from .work import device_peak, training_work


@dataclass
class _Kept:
    """Copies of the f32 weights on the host, of the computed ones on their device, and of the optimizer's state."""

    masters: dict
    parameters: dict
    state: tuple


@dataclass
class _Trained:
    """A trained network, its optimizer, and what `keep` set aside of both."""

    network: model.Network
    optimizer: AdamW
    kept: _Kept | None = None

    @classmethod
    def new(cls, network, settings):
        return cls(network, AdamW(network.weights, settings))

    def keep(self):
        if self.kept is None:
            weights = self.network.weights
            masters = weights.copy_masters()
            self.kept = _Kept(masters, weights.copy_parameters(masters), self.optimizer.copy_state())

    def restore(self):
        self.network.weights.set_masters(self.kept.masters)
        self.optimizer.set_state(self.kept.state)
        self.network.weights.clear_gradients()
        self.kept = None


@dataclass(frozen=True)
class _Options:
    """The `options` of `open` that do not say how networks compute."""

    adapter: lora.LoraOptions | None
    offloads_reference: bool
    moments_in_8_bits: bool
    moments_on_host: bool
    threads: int | None
    is_continuous: bool


@dataclass
class _Held:
    """A pass whose graph is kept."""

    name: str
    num_tokens: int
    num_candidates: int
    # The sequences of this rank.
    tokens: slice
    outputs: tuple


class Learner:
    """Holds what `open` loaded; with several `ranks`, this one's part of it.

    `num_ranks` is the number of ranks that a wave may name.
    """

    def __init__(self, ranks=None):
        self.ranks, self.num_ranks = ranks, 1 if ranks is None else ranks.number
        self.transfer = transfer.Transfer()
        self.calls = messages.calls_of(self)
        self._forget()

    def _forget(self):
        self._policy = self._critic = self._critic_settings = None
        self._reference = self._held = self._shared = self._generation = None
        self._teachers = []
        self._offloads = False
        # The settings of `open`, without folders, and the files of the checkpoint that it holds unchanged.
        self._opened = self._saved = None

    @property
    def is_holding(self):
        """Whether a graph is kept for `backward`."""
        return self._held is not None

    @property
    def computes_on_cpu(self):
        """Whether everything is computed on the host."""
        return self._policy is None or self._policy.network.options.device.type == "cpu"

    def device(self):
        """The device, for people."""
        ranks = f"{self.num_ranks} ranks, each on " if self.ranks is not None else ""
        return ranks + self._own_device()

    def _own_device(self):
        if self._policy is not None and self._policy.network.options.device.type == "cuda":
            return torch.cuda.get_device_name(self._policy.network.options.device)
        if self._policy is None and torch.cuda.is_available():
            return torch.cuda.get_device_name()
        threads = torch.get_num_threads()
        return f"cpu, {threads} thread" + "s" * (threads != 1)

    def wait(self):
        """Waits until the device has finished: a GPU computes while the host runs ahead."""
        if self._policy is not None and self._policy.network.options.device.type == "cuda":
            torch.cuda.synchronize()

    def describe(self):
        """The loaded networks, in lines for a log."""
        networks = [trained.network for trained in self._all_trained()]
        lines = [line for network in (*networks, self._reference, *self._teachers) if network is not None for line in network.describe()]
        return lines + (self._generation.describe() if self._generation is not None else [])

    def capabilities(self):
        """The capabilities in `info`."""
        has_peft = importlib.util.find_spec("peft") is not None
        dtypes = list(model.DTYPES)
        has_handles = torch.cuda.is_available() and self.ranks is None
        publish = ["folder", *(["adapter"] if has_peft else []), *(["ipc"] if has_handles else [])]
        publish += ["nccl"] if self.transfer.is_available() else []
        return {
            "critic": True,
            "lora": has_peft,
            "publish": publish,
            "generate": self.ranks is None,
            "dtypes": dtypes,
            "entropy": True,
            "weights": True,
            "candidates": True,
        }

    def close(self):
        """Frees what `open` loaded."""
        self.transfer.forget()
        self._forget()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # Opening

    def open(self, settings, columns, may_adopt=False):
        """Loads policy, critic, reference and teachers.

        `may_adopt`: the same run continues, so networks that were opened with the same settings stay.
        """
        protocol.refuse_columns(columns)
        opened = _but_for_folders(settings)
        if may_adopt and self._policy is not None and self._generation is None and opened == self._opened:
            return self._adopt(), {}
        folder = settings.text("policy")
        temperature = settings.number("temperature", above=0.0)
        optimizer = settings.object("optimizer")
        asked = settings.object("critic", None)
        critic_folder = None
        if asked is not None:
            critic_folder = asked.text("folder", None)
            critic_optimizer = asked.object("optimizer")
            asked.finish()
        reference = settings.text("reference", None)
        teachers = settings.texts("teachers", [])
        generation = settings.object("generation", None)
        if generation is not None:
            max_sequences = generation.count("max_sequences", least=1)
            generation.finish()
        recompute = settings.flag("recompute_activations", False)
        own, options = self._options(settings.object("options", None), recompute)
        optimizer = AdamWSettings.read(optimizer, own.moments_in_8_bits, own.moments_on_host)
        if asked is not None:
            critic_settings = AdamWSettings.read(critic_optimizer, own.moments_in_8_bits, own.moments_on_host)
        settings.finish()
        self.close()
        if own.threads is not None:
            torch.set_num_threads(own.threads)
        try:
            policy = options.together(lambda: _read_policy(folder, options, own.adapter))
            loading.place(policy)
            if recompute:
                policy.recompute_layers()
            self._policy = _Trained.new(policy, optimizer)
            self._temperature = temperature
            if asked is not None:
                self._critic_settings = critic_settings
                if critic_folder is not None:
                    self._set_critic(critic.load_critic(critic_folder, options))
            self._offloads = own.offloads_reference
            if generation is not None:
                if policy.vision is not None:
                    raise Refused(
                        "the learner does not sample from models that see images",
                        "sample at vLLM servers (rollout.backend: vllm)",
                    )
                self._generation = make_generation(policy, max_sequences, own.is_continuous)
            if reference is not None:
                self._set_reference(loading.load_reference(reference, self._reference_options()))
            for teacher in teachers:
                self._teachers.append(loading.load_reference(teacher, self._reference_options()))
                self._rest(self._teachers[-1])
        except BaseException:
            self.close()
            raise
        self._opened = opened
        return self._describe_open(adopted=False), {}

    def _describe_open(self, adopted):
        own = self._policy.network.options.dtype
        dtype = next(name for name, one in model.DTYPES.items() if one == own)
        return {"dtype": dtype, "adopted": adopted, "holds": self._saved, "work": self._work(), **self._networks()}

    def _work(self):
        """The operations of training, and the peak of a rank's device, if both are known."""
        network = self._policy.network
        work, peak = training_work(network), device_peak(network.options.device)
        return None if work is None or peak is None else {"peak": peak, **work}

    def _adopt(self):
        """Drops unfinished work, and keeps what is loaded."""
        self._held = None
        self.transfer.forget()
        for trained in self._all_trained():
            trained.kept = None
            trained.network.weights.clear_gradients()
        return self._describe_open(adopted=True)

    def _options(self, settings, recompute):
        settings = settings or Settings({}, "`options`")
        device = settings.text("device", "auto")
        dtype = settings.choice("dtype", ["auto", *model.DTYPES], "auto")
        attention = settings.text("attention", "auto")
        chunk = settings.count("logprob_chunk", None, least=1)
        threads = settings.count("threads", None, least=1)
        offloads = settings.flag("offload_reference", False)
        in_8_bits = settings.choice("moments", ["f32", "8bit"], "f32") == "8bit"
        on_host = settings.flag("offload_moments", False)
        freezes = settings.flag("freeze_vision", False)
        is_continuous = settings.flag("continuous_batching", False)
        is_exact = settings.flag("exact", False)
        adapter = settings.object("lora", None)
        adapter = adapter and lora.LoraOptions.read(adapter)
        settings.finish()
        device = take_device(device)
        if dtype == "auto":
            dtype = "bf16" if device.type == "cuda" else "f32"
        if is_exact:
            _check_exact(attention, chunk, is_continuous, adapter, self.ranks)
        options = model.ComputeOptions(
            device, model.DTYPES[dtype], attention, chunk, recompute, freezes, self.ranks, exact=is_exact
        )
        return _Options(adapter, offloads, in_8_bits, on_host, threads, is_continuous), options

    def _networks(self):
        def of(trained):
            return None if trained is None else trained.network.sizes()

        networks = [trained.network for trained in self._all_trained()] + [self._reference, *self._teachers]
        return {
            "policy": of(self._policy),
            "critic": of(self._critic),
            "num_steps": self._policy.optimizer.num_steps,
            "shares_prompts": all(network.shares_prompts for network in networks if network is not None),
        }

    def _set_critic(self, network):
        if network.options.recompute:
            network.recompute_layers()
        self._critic = _Trained.new(network, self._critic_settings)

    def _set_reference(self, network):
        self._reference = network
        self._rest(network)

    def _reference_options(self):
        """The reference's way to compute. With several ranks each one's part comes from the host, a layer at a time."""
        return replace(self._policy.network.options, on_host=self._offloads and self.ranks is not None)

    def _moves_reference(self):
        return self._offloads and self.ranks is None

    def _rest(self, network):
        """Moves a frozen network to main memory, if it waits there between passes."""
        if self._moves_reference():
            network.module.to("cpu")

    def _trained(self, settings):
        """The trained network that a call names."""
        name = settings.choice("network", ["policy", "critic"])
        settings.finish()
        return self._named(name)

    def _named(self, name):
        trained = self._policy if name == "policy" else self._critic
        if trained is None and self._critic_settings is None:
            raise Refused("the learner was opened without a critic", "open it with `critic`")
        if trained is None:
            raise StateError("the critic has no weights yet", "begin it with `copy`")
        return trained

    # Passes

    @torch.no_grad()
    def forward(self, settings, columns):
        """Columns of a wave under any of the networks; a held graph stays."""
        teachers = {f"teacher/{number}": teacher for number, teacher in enumerate(self._teachers)}
        name = settings.choice("network", ["policy", "before", "reference", "base", "critic", *teachers])
        sharpness = settings.number("sharpness", 1.0, above=0.0)
        top = settings.count("top", None, least=1)
        images = settings.lists_of_texts("images", None)
        settings.finish()
        wave = self._wave(columns, images)
        if name == "critic" and sharpness != 1.0:
            raise RequestError("values have no sharpness")
        if name == "critic" and top is not None:
            raise RequestError("a critic has no likeliest tokens")
        # They belong to passes that are held.
        wave.candidates = None
        factor = sharpness / self._temperature
        if name == "reference":
            if self._reference is None:
                raise StateError("the learner has no reference", "open it with one, or make one with `copy`")
            return {}, self._forward_frozen(self._reference, wave, factor, top)
        if name in teachers:
            return {}, self._forward_frozen(teachers[name], wave, factor, top)
        trained = self._named("critic" if name == "critic" else "policy")
        network = trained.network
        if name == "base":
            if not isinstance(network, lora.AdapterNetwork):
                raise Refused("the policy has no adapter", "ask for the reference")
            with network.without_adapter():
                return {}, self._columns(network, wave, factor, top)
        if name == "before" and trained.kept is not None:
            with network.weights.swapped(trained.kept.parameters):
                return {}, self._columns(network, wave, factor, top)
        return {}, self._columns(network, wave, factor, top)

    def _columns(self, network, wave, factor, top):
        if top is None:
            return _columns(network, self._pass(network, wave, factor))
        if top > network.vocab_size:
            raise RequestError(f"`top` is {top}, and the vocabulary has {network.vocab_size} tokens")
        logprob, ids, of_ids = self._pass(network, wave, factor, top)
        return {"logprob": logprob, "top_token": ids.int().flatten(), "top_logprob": of_ids.flatten()}

    def _pass(self, network, wave, factor, top=None):
        """The head's columns over this rank's part of a wave."""
        if self.ranks is not None:
            # An error in another rank's part is found by all.
            wave.check_fits(network.vocab_size, network.max_positions)
            wave, _ = wave.of_rank(self.ranks.rank)
        return network.forward(wave, factor, top)

    def _forward_frozen(self, network, wave, factor, top=None):
        """Columns of a network that does not learn: the reference or a teacher."""
        if self._moves_reference():
            network.module.to(network.options.device)
        try:
            return self._columns(network, wave, factor, top)
        finally:
            self._rest(network)

    def _wave(self, columns, images):
        wave = Wave.from_columns(columns, self.num_ranks, images)
        protocol.refuse_columns(columns)
        return wave

    def forward_hold(self, settings, columns):
        """Columns of a wave under a trained network; its graph is kept."""
        name = settings.choice("network", ["policy", "critic"])
        images = settings.lists_of_texts("images", None)
        settings.finish()
        trained = self._named(name)
        wave = self._wave(columns, images)
        if name == "critic" and wave.candidates is not None:
            raise RequestError("a critic has no candidates")
        self._held = None
        with torch.enable_grad():
            outputs = self._pass(trained.network, wave, 1.0 / self._temperature)
        tokens = slice(None) if self.ranks is None else wave.of_rank(self.ranks.rank)[1]
        self._held = _Held(name, wave.num_tokens, wave.num_candidates, tokens, outputs)
        return {}, _columns(trained.network, tuple(output.detach() for output in outputs))

    def backward(self, settings, columns):
        """Adds the gradient of the held pass, given the loss's derivatives by its columns."""
        discard = settings.flag("discard", False)
        settings.finish()
        if discard:
            protocol.refuse_columns(columns)
            self._held = None
            return {}, {}
        held = self._held
        if held is None:
            raise StateError("no pass is held")
        names = self._named(held.name).network.head.columns
        optional = ("entropy", "candidate")
        names += ("candidate",) if held.num_candidates else ()
        derivatives = [
            protocol.take_derivatives(
                columns, name, held.num_tokens, name not in optional, held.num_candidates if name == "candidate" else 1
            )
            for name in names
        ]
        protocol.refuse_columns(columns)
        self._held = None
        pairs = [
            (output, derivative[held.tokens].to(output.device))
            for output, derivative in zip(held.outputs, derivatives, strict=True)
            if derivative is not None and output.requires_grad
        ]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
            self._named(held.name).network.weights.note_backward()
        return {}, {}

    # Steps

    def _refuse_held(self, trained):
        if self._held is not None and self._named(self._held.name) is trained:
            raise StateError("a pass of this network is held", "send its derivatives, or discard it")

    def optim_step(self, settings, columns):
        """Clips the gradient, steps, clears the gradient."""
        protocol.refuse_columns(columns)
        learning_rate = settings.number("learning_rate", least=0.0)
        trained = self._trained(settings)
        self._refuse_held(trained)
        norm, skipped = trained.optimizer.step(learning_rate)
        if not skipped:
            self._saved = None
        return {"skipped": skipped, "num_steps": trained.optimizer.num_steps}, _norm_column(norm)

    def grad_norm(self, settings, columns):
        """The gradient's norm; clears the gradient."""
        protocol.refuse_columns(columns)
        trained = self._trained(settings)
        norm = trained.optimizer.grad_norm()
        trained.network.weights.clear_gradients()
        return {}, _norm_column(norm)

    def _all_trained(self):
        return [trained for trained in (self._policy, self._critic) if trained is not None]

    def keep(self, settings, columns):
        """Sets weights and optimizers aside, unless they are already."""
        _finish(settings, columns)
        for trained in self._all_trained():
            trained.keep()
        return {}, {}

    def restore(self, settings, columns):
        """Puts back what was set aside."""
        _finish(settings, columns)
        for trained in self._all_trained():
            if trained.kept is not None:
                self._held = self._saved = None
                trained.restore()
        return self._networks(), {}

    def copy(self, settings, columns):
        """Copies the present policy as the reference, or as the beginning of the critic."""
        protocol.refuse_columns(columns)
        to = settings.choice("to", ["reference", "critic"])
        settings.finish()
        self._saved = None
        if to == "reference":
            self._reference = None
            self._set_reference(self._policy.network.freeze(self._reference_options().on_host))
        else:
            if self._critic_settings is None:
                raise Refused("the learner was opened without a critic", "open it with `critic`")
            if self._held is not None and self._held.name == "critic":
                self._held = None
            self._critic = None
            self._set_critic(critic.critic_from_policy(self._policy.network))
        return self._networks(), {}

    def reset_optimizer(self, settings, columns):
        """Sets moments and step count to zero."""
        protocol.refuse_columns(columns)
        self._saved = None
        self._trained(settings).optimizer.reset()
        return {}, {}

    def check(self, settings, columns):
        """The first tensor that holds a number which is not finite."""
        _finish(settings, columns)
        for name, trained in (("policy", self._policy), ("critic", self._critic)):
            if trained is None:
                continue
            optimizer = trained.optimizer
            moments = [pair for names in (optimizer.first, optimizer.second) for pair in names.items()]
            for what, tensors in ((name, trained.network.weights.masters.items()), (f"{name}_moments", moments)):
                broken = first_not_finite(tensors)
                if broken is not None:
                    return {"not_finite": {"what": what, "tensor": broken}}, {}
        return {"not_finite": None}, {}

    # Weights out and in

    def publish(self, settings, columns):
        """Frees what was set aside. The version's number is not used: servers get weights by `save`."""
        protocol.refuse_columns(columns)
        settings.count("version")
        settings.finish()
        for trained in self._all_trained():
            trained.kept = None
        if self._generation is not None:
            self._generation.forget_prompts()
        if torch.cuda.is_available():
            # A server that slept on this GPU takes its memory again.
            torch.cuda.empty_cache()
        return {}, {}

    def save(self, settings, columns):
        """Writes weights or a checkpoint."""
        protocol.refuse_columns(columns)
        folder = settings.text("folder")
        content = settings.choice("content", ["weights", "adapter", "handles", "transfer", "checkpoint"])
        dtype = settings.choice("dtype", list(checkpoint.DTYPES), "f32")
        untied = settings.flag("untied", False)
        settings.finish()
        policy, critics = self._policy, ()
        if content == "handles":
            output = checkpoint.Output(checkpoint.empty_folder(folder))
            # The last copies are no longer read, and there is no room for both.
            self._shared = None
            self._shared = handles.save(output, untied, policy.network)
            return {"files": output.files, "overflow": None}, {}
        if content == "transfer":
            output = checkpoint.output_into(folder, self.ranks)
            return self.transfer.save(output, policy.network, dtype, untied, self.ranks), {}
        if self._critic is not None:
            critics = self._critic.network, self._critic.optimizer
        answer = checkpoint.save(folder, content, dtype, untied, policy.network, policy.optimizer, *critics)
        if content == "checkpoint":
            self._saved = {file["name"]: file["crc32"] for file in answer["files"]}
        return answer, {}

    def load(self, settings, columns):
        """Loads a checkpoint, or a reference."""
        protocol.refuse_columns(columns)
        folder = settings.text("folder")
        content = settings.choice("content", ["checkpoint", "reference"])
        settings.finish()
        if content == "reference":
            self._reference = None
            self._set_reference(loading.load_reference(folder, self._reference_options()))
        else:
            self._saved = None
            self._load_checkpoint(folder)
            self._held = None
        return self._networks(), {}

    # Generation

    def generate(self, settings, columns):
        """Samples from the policy, or from the one that `keep` set aside."""
        if self._generation is None:
            raise Refused("the learner was not opened to generate", "open it with `generation`")
        kept = self._policy.kept
        with contextlib.nullcontext() if kept is None else self._policy.network.weights.swapped(kept.parameters):
            return self._generation.call(settings, columns)

    def _load_checkpoint(self, folder):
        made = None
        if self._critic_settings is not None and self._critic is None:
            self._set_critic(critic.critic_from_policy(self._policy.network))
            made = self._critic
        parts = [("", self._policy.network, self._policy.optimizer)]
        if self._critic is not None:
            parts.append(("critic", self._critic.network, self._critic.optimizer))
        try:
            checkpoint.load(folder, parts)
        except BaseException:
            # A critic without the checkpoint's weights is useless.
            if made is not None:
                self._critic = None
            raise
        for trained in self._all_trained():
            trained.kept = None


def _read_policy(folder, options, adapter):
    if adapter is None:
        return loading.load_policy(folder, options)
    return lora.add_adapter(loading.load_policy(folder, options, options.dtype), adapter)


def _check_exact(attention, chunk, is_continuous, adapter, ranks):
    """Refuses what `exact` does not go with."""
    others = {"attention": attention != "auto", "logprob_chunk": chunk is not None, "continuous_batching": is_continuous}
    for name, is_set in others.items():
        if is_set:
            raise Refused(
                f"`learner.exact` has its own way to compute, which `learner.{name}` would change", f"remove `learner.{name}`"
            )
    if adapter is not None and adapter.is_four_bits:
        raise Refused("`learner.exact` is not tested over weights in 4 bits", "remove `learner.lora.base`, or `learner.exact`")
    if ranks is not None:
        raise Refused("`learner.exact` does not work with several ranks", "set `learner.gpus_per_node: 1` and one node")


def _but_for_folders(settings):
    """The settings of `open` that must be equal for two of them to share what is loaded."""
    opened = settings.others_than("policy", "critic", "adopt")
    critic = settings.others_than().get("critic")
    opened["critic"] = {name: value for name, value in critic.items() if name != "folder"} if isinstance(critic, dict) else critic
    return opened


def _columns(network, outputs):
    columns = dict(zip(network.head.columns, outputs, strict=False))
    if len(outputs) > len(columns):
        columns["candidate"] = outputs[-1].flatten()
    return columns


def _norm_column(norm):
    return {"grad_norm": torch.tensor([norm], dtype=torch.float64)}


def _finish(settings, columns):
    protocol.refuse_columns(columns)
    settings.finish()
