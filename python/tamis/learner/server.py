"""The learner in PyTorch behind its connections, and the ranks beside it."""

import contextlib
import os
import sys
import time

import torch

from . import connections, protocol
from .connections import Answer
from .device import is_device_lost, is_out_of_memory
from .learner import Learner
from .messages import Failed, Lost
from .ranks import EXIT_LOST, Gang, Watch
from .session import Session as AnySession

# Keys of tamis that reduce memory, by the call that ran out of it; a resumed run may change them.
_LESS_MEMORY = {
    **dict.fromkeys(
        ("/v1/forward", "/v1/forward_hold", "/v1/backward"),
        "lower `train.micro_batch_tokens` (or `train.micro_batch_size`, if it is set), set `model.recompute_activations: true`, or lower `learner.logprob_chunk`; a "
        "resumed run may change them",
    ),
    "/v1/generate": "lower `rollout.max_num_seqs`; a resumed run may change it",
}
_LESS_WEIGHTS = (
    "set `learner.offload_reference: true`, which a resumed run may change, or begin a run that trains an adapter "
    "(`learner.lora`)"
)


class Session(AnySession):
    """A session of tensors."""

    implementation = f"tamis torch {torch.__version__}"

    def decode(self, content_type, body):
        """A body as settings and tensors."""
        return protocol.decode(content_type, body)

    def answer(self, values, columns=None):
        """The answer with settings and tensors."""
        return Answer(200, *protocol.encode(values, columns))

    def is_out_of_memory(self, error):
        """The memory of the host, or of the device."""
        return is_out_of_memory(error)

    def is_device_lost(self, error):
        """Whether the GPU is unusable for this process."""
        return is_device_lost(error)

    def hint_of_memory(self, path):
        """Keys of tamis that a resumed run may change."""
        return _LESS_MEMORY.get(path, _LESS_WEIGHTS)


def serve(where, key=None, ranks=None):
    """Listens and computes until a signal, or until `orphan_timeout` has passed.

    With several ranks this is the first of them.
    """
    learner = Learner(ranks)
    session = Session(
        learner if ranks is None else Gang(learner, ranks), log=lambda line: print(line, file=sys.stderr, flush=True)
    )
    if ranks is None:
        connections.serve(where, session, key)
        return

    def lose(what, full_at):
        """Ends the process, whose main thread may wait for ever, after the reason was reported."""
        session.log(what)
        hint = "all ranks end, to be started again"
        session.lose(Lost(what, hint) if full_at is None else Failed(what, _LESS_MEMORY.get(full_at, _LESS_WEIGHTS)))
        time.sleep(connections.LAST_SECONDS / 2)
        if where.startswith("unix:"):
            with contextlib.suppress(OSError):
                os.unlink(where.removeprefix("unix:"))
        os._exit(EXIT_LOST)

    session.watch = session.learner.watch = Watch(ranks, lose)
    if connections.serve(where, session, key):
        # The others end when this one does.
        session.watch.close()
        ranks.tell(None)
        ranks.leave()


__all__ = ["Learner", "Session", "serve"]
