"""One model at the server: passes over sequences, optimizer steps, weights saved and loaded.

Derivatives are sent as `importance_sampling`, never as `cross_entropy`: on some servers its divisor is negative or zero
for some weights.
"""

import contextlib
import math
import secrets
from array import array
from dataclasses import dataclass

from ..learner.messages import Failed, LearnerError
from . import protobuf
from .api import AnswerLost, Gone, ServerRefused, Session, is_norm
from .columns import Sequence
from .protobuf import Datum

# Most sequences and bytes of one pass: what the SDK sends at once.
MAX_SEQUENCES = 1024
MAX_BYTES = 5_000_000
# Seconds for which a server is asked to free a model that is not needed any more.
LAST_SECONDS = 5.0
# Bytes of a target: token, target, log-probability, advantage.
_TARGET_BYTES = 4 + 8 + 4 + 4
# How many names are tried for a save before "exists already" is an error, and how many sessions for a model before a
# lost answer is one.
_NAMES = 3
_TRAINED = {"train_mlp": True, "train_attn": True}
GO_ON = "continue from the last checkpoint (--resume)"


@dataclass(frozen=True)
class Adam:
    """All numbers of an AdamW step. Servers have different defaults for those that are not sent."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    # Largest norm of the gradient; `None`: any.
    max_grad_norm: float | None = None

    def parameters(self, learning_rate):
        """In the form of the API."""
        return {
            "learning_rate": learning_rate,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "eps": self.epsilon,
            "weight_decay": self.weight_decay,
            "grad_clip_norm": self.max_grad_norm or 0.0,
        }


@dataclass(frozen=True)
class Derivatives:
    """The loss's derivative by each completion token's log-probability, and these log-probabilities of the pass just
    before.
    """

    sequence: Sequence
    logprobs: array
    derivatives: array

    @property
    def is_zero(self):
        """Whether it has no gradient."""
        return not any(self.derivatives)

    @property
    def is_finite(self):
        """Whether all of its numbers are finite."""
        return all(map(math.isfinite, self.derivatives)) and all(map(math.isfinite, self.logprobs))

    def datum(self, divisor):
        """A datum of `importance_sampling` whose gradient, divided by `divisor`, is that of the derivatives."""
        before = [0.0] * (len(self.sequence.prompt) - 1)
        advantages = [*before, *(-derivative * divisor for derivative in self.derivatives)]
        return _datum(self.sequence, {"advantages": advantages, "logprobs": [*before, *self.logprobs]})


def _datum(sequence, inputs):
    tokens = sequence.tokens()
    return Datum(tokens[:-1], tokens[1:], inputs)


def cut(items, sequence_of):
    """Cuts items into calls; `sequence_of` gives the sequence of one."""
    calls, size = [], 0
    for item in items:
        own = sequence_of(item).num_targets * _TARGET_BYTES
        if not calls or len(calls[-1]) >= MAX_SEQUENCES or size + own > MAX_BYTES:
            calls.append([])
            size = 0
        calls[-1].append(item)
        size += own
    return calls


class Model:
    """A model with an adapter of its own at the server. `session`: an `api.Session` only for it."""

    def __init__(self, session, base_model, rank, seed):
        self.session, self.api = session, session.api
        self.id = self._future = self._spoilt = None
        self._number = 0
        self.api.models.add(self)
        try:
            self._create(base_model, {"rank": rank, "seed": seed, "train_unembed": False} | _TRAINED)
        except BaseException:
            self.leave()
            raise

    def _create(self, base_model, config):
        for attempt in range(_NAMES):
            values = {"session_id": self.session.id, "model_seq_id": 0, "base_model": base_model}
            try:
                body = {**values, "lora_config": config, "type": "create_model"}
                self.api.submit("create_model", body, note=self._note)
                break
            except AnswerLost:
                if attempt + 1 == _NAMES:
                    raise
                # There may now be a model with an unknown id. Without a heartbeat its session ends, and it with the
                # session.
                self.session.close()
                self.session = Session(self.api)
        made = self.api.result(self._future, "create_model").get("model_id")
        if not isinstance(made, str):
            raise Failed(f"{self.api.url} made a model without a `model_id`")
        self.id = made

    def _note(self, answer):
        self._future, self.id = answer.get("request_id"), answer.get("model_id")

    @property
    def is_fresh(self):
        """Whether no call was made yet: only then can it load a checkpoint's weights."""
        return self._number == 0

    def spoil(self, why):
        """Marks the weights as unusable: from now on all calls but those that end the model raise `Failed`."""
        self._spoilt = self._spoilt or why

    @property
    def is_spoilt(self):
        """Whether its weights are unusable."""
        return self._spoilt is not None

    def _next_number(self):
        if self._spoilt is not None:
            raise Failed(self._spoilt, GO_ON)
        self._number += 1
        return self._number

    def _submit(self, path, values):
        number = self._next_number()
        return self.api.submit(path, {"model_id": self.id, "seq_id": number, **values, "type": path})

    def _submit_pass(self, data, loss, forward_only=False):
        number = self._next_number()
        encoded = [protobuf.encode_datum(datum) for datum in data]
        body = protobuf.encode_pass(self.id, number, encoded, loss, forward_only)
        return self.api.submit("forward_backward", body)

    def _pass_result(self, future, data):
        rows, _ = self.api.protobuf_result(future, "forward_backward", protobuf.decode_pass)
        expected = [len(datum.targets) for datum in data]
        if [len(row) for row in rows] != expected:
            found = [len(row) for row in rows]
            raise Failed(f"a pass over sequences of {expected} targets gave {found} log-probabilities")
        return rows

    def forward(self, sequences):
        """The log-probability of each completion token of each sequence."""
        calls = []
        for part in cut(sequences, lambda sequence: sequence):
            # The weights of a loss that is not computed.
            data = [_datum(one, {"weights": [1.0] * one.num_targets}) for one in part]
            calls.append((self._submit_pass(data, "cross_entropy", forward_only=True), data, part))
        found = []
        for future, data, part in calls:
            rows = self._pass_result(future, data)
            found += [row[len(one.prompt) - 1 :] for row, one in zip(rows, part, strict=True)]
        return found

    def step(self, calls, adam, learning_rate, divisor):
        """Sends passes and an optimizer step together; returns the step's metrics.

        `calls`: lists of `Derivatives`; `divisor`: that of a `Reduction`. A server takes the step without passes that
        it refused, and keeps passes whose step it refused, so after an error the model is unusable.
        """
        try:
            return self._step(calls, adam, learning_rate, divisor)
        except LearnerError:
            self.spoil(f"the weights at {self.api.url} are of a step that was not taken whole")
            raise

    def _step(self, calls, adam, learning_rate, divisor):
        step = [one.sequence.num_targets for call in calls for one in call]
        futures = []
        for call in calls:
            own = [one.sequence.num_targets for one in call]
            data = [one.datum(divisor(num_targets, own, step)) for one, num_targets in zip(call, own, strict=True)]
            futures.append((self._submit_pass(data, "importance_sampling"), data))
        future = self._submit("optim_step", {"adam_params": adam.parameters(learning_rate)})
        for passed, data in futures:
            self._pass_result(passed, data)
        metrics = self.api.result(future, "optim_step").get("metrics")
        return metrics if isinstance(metrics, dict) else {}

    def _save(self, call):
        """Saves under a new name; returns the name and the server's path."""
        for attempt in range(_NAMES):
            name = f"tamis-{secrets.token_hex(6)}"
            try:
                path = self.api.result(self._submit(call, {"path": name}), call).get("path")
            except ServerRefused as error:
                # The answer to an earlier request with this name may have been lost.
                if error.answered != 409 or attempt + 1 == _NAMES:
                    raise
                continue
            if not isinstance(path, str):
                raise Failed(f"{self.api.url} saved weights and gave no path")
            return name, path

    def save(self):
        """Saves weights and moments; returns the path at the server."""
        return self._save("save_weights")[1]

    def save_adapter(self):
        """Saves the weights in the form that others load; returns the address of their archive."""
        # The server does not hand out weights that can be loaded for training.
        name, _ = self._save("save_weights_for_sampler")
        return f"{self.api.url}/api/v1/training_runs/{self.id}/checkpoints/{name}/archive"

    def load(self, path, has_optimizer=True):
        """Loads the weights of a path, and the moments. This must be the model's first call."""
        future = self._submit("load_weights", {"path": path, "optimizer": has_optimizer})
        self.api.result(future, "load_weights")

    def sampler(self):
        """The id of a sampler of the present weights."""
        number = self.session.next_sampler()
        future = self._submit("save_weights_for_sampler", {"sampling_session_seq_id": number})
        sampler = self.api.result(future, "save_weights_for_sampler").get("sampling_session_id")
        if not isinstance(sampler, str):
            raise Failed(f"{self.api.url} saved weights for sampling and gave no `sampling_session_id`")
        return sampler

    def leave(self):
        """Asks the server to free its place, without waiting. A server that is gone holds none."""
        with contextlib.suppress(LearnerError):
            if self.id is None and self._future is not None:
                self.id = self.api.result(self._future, "create_model", LAST_SECONDS).get("model_id")
            if self.id is not None:
                self.api.submit("unload_model", self._ending(), patience=LAST_SECONDS)
        self._forget()

    def unload(self):
        """Frees its place at the server. It is no error if the server no longer has it."""
        with contextlib.suppress(Gone):
            self.api.result(self.api.submit("unload_model", self._ending()), "unload_model")
        self._forget()

    def _ending(self):
        return {"model_id": self.id, "type": "unload_model"}

    def _forget(self):
        self.session.close()
        self.api.models.discard(self)


def grad_norm(metrics):
    """The norm of a step's gradient: NaN if it was not finite, `None` if the server gives none."""
    for name, value in metrics.items():
        if name.replace(".", "/").split("/")[-1] == "grad_norm":
            return float(value) if is_norm(value) else math.nan
    return None
