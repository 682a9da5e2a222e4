"""A critic: the policy's decoder with a head that gives one number a position.

Its files are those of the native engine and of transformers' `...ForTokenClassification` with one label: the decoder's
tensors under the policy's names, `score.weight` [1, D] and `score.bias` [1]. The head computes in f32, whatever the
decoder computes in. A critic that begins with a language model's layers has a head of zeros: it gives 0 everywhere
until it has learned.
"""

import copy

import torch
from transformers import AutoModel

from .checkpoint import read_tensors
from .loading import Source, is_spare, load_module, load_policy, place
from .model import Network
from .protocol import Refused
from .sharding import hollow_copy, shard
from .vision import is_vision

SCORE = ("score.weight", "score.bias")
# Endings of transformers' class names of language models, and of critics.
LANGUAGE_MODEL, CRITIC = ("ForCausalLM", "LMHeadModel"), "ForTokenClassification"


class ValueHead(torch.nn.Linear):
    """The value at a position, `w x + b` of its hidden state."""

    columns = ("value",)

    def __init__(self, width, device):
        super().__init__(width, 1, device=device)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden, targets, factor):
        """The column of values of hidden states [N, D]: f32 [N], of the states before the targets."""
        # A copy: PyTorch's sharding adds hooks to a module's output, and warns if it is a view.
        return (super().forward(hidden.float())[:, 0].clone(),)


class Critic(torch.nn.Module):
    """Decoder and value head, its parameters under the names of the file."""

    def __init__(self, decoder, prefix, head):
        super().__init__()
        setattr(self, prefix, decoder)
        self.score = head


def _prefix(decoder):
    if not decoder.base_model_prefix:
        message = f"{type(decoder).__name__} names no prefix of its tensors, so a critic of it has no file"
        raise Refused(message, "name a critic of another architecture in `critic.model.path`")
    return decoder.base_model_prefix


def _network(decoder, source, options):
    head = ValueHead(decoder.config.get_text_config().hidden_size, options.device)
    return Network(Critic(decoder, _prefix(decoder), head), decoder, head, _as_critic(source), options)


def _as_critic(source):
    """The configuration of a critic for its policy's."""
    config = dict(source.config)
    names = config.get("architectures") or []
    config["architectures"] = [_critic_name(name) for name in names]
    # `transformers` drops activations here in training by default.
    config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "classifier_dropout": 0.0}
    return Source(source.folder, config, source.generation)


def _critic_name(name):
    for ending in LANGUAGE_MODEL:
        if name.endswith(ending):
            return name.removesuffix(ending) + CRITIC
    return name


def critic_from_policy(policy):
    """A critic with the policy's present layers and a value head of zeros."""
    if len(policy.weights.masters) != sum(1 for _ in policy.module.parameters()):
        # Only its adapter is trained.
        raise Refused("a critic cannot start from the layers of a policy that has an adapter", "name the policy's folder for it")
    if policy.vision is not None:
        raise Refused("a critic cannot see images yet", "choose an advantage without a critic, such as grpo")
    module, sources = (None, {}) if policy.root is None else hollow_copy(policy)
    decoder = copy.deepcopy(policy.decoder) if module is None else module.base_model
    critic = _network(decoder, policy.source, policy.options)
    critic.computes_as(policy)
    critic.module.eval()
    if module is not None:
        critic.sources = sources
        shard(critic)
        return critic
    masters = policy.weights.masters
    prefix = _prefix(decoder) + "."
    critic.train({name: masters[name].clone() for name in critic.trained_parameters() if name.startswith(prefix)})
    return critic


def load_critic(folder, options):
    """A critic from a critic's folder, or with a language model's layers and a value head of zeros."""
    network = options.together(lambda: _read_critic(folder, options))
    place(network)
    return network


def _read_critic(folder, options):
    source = Source.read(folder)
    name = (source.config.get("architectures") or ["nothing"])[0]
    if is_vision(source.config):
        raise Refused(f"{folder} holds {name}, but critics do not support images", "name a model without images")
    if name.endswith(LANGUAGE_MODEL):
        policy = load_policy(folder, options)
        critic = _network(policy.decoder, source, options)
        critic.sources, critic.read_whole = policy.sources, policy.read_whole
        return critic
    if not name.endswith(CRITIC) or len(source.config.get("id2label", {})) != 1:
        message = f"{folder} holds {name}, and a critic is a ...{CRITIC} with one label, or a language model (...ForCausalLM)"
        raise Refused(message, "leave `critic.model.path` out: the critic then begins with the policy's layers")
    loaded = load_module(source, AutoModel, torch.float32, options.ranks is not None)
    foreign = [name for name in loaded.unexpected if name not in SCORE and not is_spare(name)]
    if foreign:
        message = f"tensor `{foreign[0]}` in {folder} does not belong to a critic"
        raise Refused(message, f"name a folder in `critic.model.path` that holds a ...{CRITIC} and nothing else")
    critic = _network(loaded.module, source, options)
    loaded.hand_to(critic)
    score = {name: list(parameter.shape) for name, parameter in critic.head.named_parameters(prefix="score")}
    values = read_tensors(source.folder, score, others=True)
    with torch.no_grad():
        for name, parameter in critic.head.named_parameters(prefix="score"):
            parameter.copy_(values[name]())
    return critic
