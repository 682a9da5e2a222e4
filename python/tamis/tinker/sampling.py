"""Open samples. Each is one request to the server, begun by one call of the controller; it ends in this call or a later
one.

Nothing of a sample is known before it has ended, so all of its tokens are of the weights that it was begun with. If
weights change while it is open, it is sampled again with the new ones.
"""

import math
import queue
import threading
import time
from array import array
from dataclasses import dataclass

from ..learner.messages import Failed, LearnerError
from . import protobuf
from .api import FutureFailed, ServerRefused

# Threads that wait for samples: the server computes so many at once.
MAX_THREADS = 256


# Errors that concern one sample, not others.
_OF_ONE = (ServerRefused, FutureFailed)


def sample(api, sampler, number, prompt, parameters, vocab_size=None):
    """One completion of a prompt. Raises `Failed` if its ids are outside the vocabulary (`None`: any size), if it is
    too long, or if its log-probabilities are not finite.
    """
    values = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": list(prompt), "type": "encoded_text"}]},
        "sampling_params": {"top_k": -1, "top_p": 1.0, **parameters},
        "sampling_session_id": sampler,
        "seq_id": number,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "type": "sample",
    }
    future = api.submit("asample", values)
    sequences = api.protobuf_result(future, "asample", protobuf.decode_samples)
    if len(sequences) != 1:
        raise Failed(f"{api.url} answered one sample with {len(sequences)}")
    found, stop = sequences[0], parameters.get("stop")
    for token in found.tokens:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            message = f"{api.url} sampled the token {token}, and the vocabulary of `model.path` has {vocab_size}"
            raise Failed(message, "name the same model in --base-model and in `model.path`")
    if len(found.tokens) > parameters["max_tokens"]:
        message = f"{api.url} sampled {len(found.tokens)} tokens, and at most {parameters['max_tokens']} were asked for"
        raise Failed(message)
    for at, logprob in enumerate(found.logprobs):
        if not math.isfinite(logprob):
            message = f"{api.url} gave {logprob} as the log-probability of token {at + 1} of a sample"
            raise Failed(message, "its weights may be lost: continue from the last checkpoint (--resume)")
    if stop and found.is_stopped and (not found.tokens or found.tokens[-1] not in stop):
        hint = "a policy learns to end only if its end tokens are among those that it is trained on"
        raise Failed(f"{api.url} ended a sample and left out the token that ended it", hint)
    return found


@dataclass
class _Open:
    """A sample; `begun` is a new object each time it is begun."""

    prompt: array
    parameters: dict
    begun: object = None


class Samples:
    """The open samples of a run, and the threads that wait for them."""

    def __init__(self, api, max_sequences, vocab_size):
        self._vocab_size = vocab_size
        self._api, self._num_threads = api, min(max_sequences, MAX_THREADS)
        self._open, self._threads = {}, []
        self._to_do, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        self._num_asked = 0

    @property
    def num_open(self):
        """Number of samples that have not ended."""
        return len(self._open)

    def __contains__(self, number):
        return number in self._open

    def begin(self, number, prompt, parameters):
        """Opens a sample."""
        self._open[number] = _Open(prompt, parameters)

    def abort(self, number):
        """Gives an open sample up; the server may finish it."""
        self._open.pop(number, None)

    def begin_anew(self):
        """The weights have changed: begins open samples again."""
        for one in self._open.values():
            one.begun = None

    def wait(self, sampler, seconds):
        """Begins waiting samples with this sampler (an id), then waits for the first that ends, for at most so many
        seconds.

        Returns pairs of a sample's number and its completion, or the error because of which it cannot be generated.
        """
        for number, one in self._open.items():
            if one.begun is None:
                one.begun = object()
                self._num_asked += 1
                self._to_do.put((number, one, one.begun, sampler, self._num_asked))
        while len(self._threads) < min(self._num_threads, len(self._open)):
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        ended, end = [], time.monotonic() + seconds
        while self._open:
            left = 0.0 if ended else max(0.0, end - time.monotonic())
            try:
                number, begun, found = self._done.get(timeout=left) if left else self._done.get_nowait()
            except queue.Empty:
                break
            # It was given up or begun again; this result is obsolete.
            if number in self._open and self._open[number].begun is begun:
                if isinstance(found, BaseException) and not isinstance(found, _OF_ONE):
                    raise found
                del self._open[number]
                ended.append((number, found))
        return ended

    def close(self):
        """Gives all samples up."""
        self._open.clear()
        for _ in self._threads:
            self._to_do.put(None)

    def _work(self):
        while (job := self._to_do.get()) is not None:
            number, one, begun, sampler, asked = job
            if one.begun is not begun:
                continue
            try:
                found = sample(self._api, sampler, asked, one.prompt, one.parameters, self._vocab_size)
            except LearnerError as error:
                found = error
            except Exception as error:
                found = Failed(f"{type(error).__name__}: {error}")
            self._done.put((number, begun, found))
