"""The reward model behind its connections, which are the learner's without incarnations and numbers.

A connection's thread reads a request and waits; the main thread takes all requests that wait, scores their texts
together, and answers them. So the model has full batches though each completion is sent as soon as it ends.
"""

import contextlib
import queue
import sys
import threading
import traceback
from dataclasses import dataclass, field

from ..learner import connections
from ..learner.connections import Answer, DeviceLost
from ..learner.device import is_device_lost, is_out_of_memory
from ..learner.messages import first_line
from ..learner.protocol import Failed, LearnerError, PathError, RequestError, Settings, decode, parse_json
from .scoring import RewardModel, read_texts

MAX_BODY_BYTES = 1 << 24
SCORE = "/v1/score"


@dataclass
class _Job:
    texts: list
    answer: Answer | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class ScoringSession:
    """The session of a reward model, for its connections."""

    max_body_bytes = max_json_bytes = MAX_BODY_BYTES

    def __init__(self, model, log=lambda line: None):
        self.model = model
        self.log = log
        self._jobs = queue.SimpleQueue()

    def hear(self):
        """It does not end for lack of callers."""

    def health(self):
        """The answer of `health`."""
        return {"phase": "idle" if self._jobs.empty() else "busy"}

    def info(self):
        """The answer of `info`."""
        model = self.model
        return {"device": str(model.device), "dtype": model.dtype, "num_labels": model.num_labels, "max_length": model.max_length}

    def submit(self, path, content_type, body, _incarnation=None, _seq=None):
        """The answer of a `POST`; waits until it is there."""
        if path != SCORE:
            raise PathError(f"there is no call POST {path}")
        values, columns = decode(content_type, body)
        if columns:
            raise RequestError("the body has columns, and must be JSON")
        job = _Job(read_texts(values))
        self._jobs.put(job)
        job.ended.wait()
        return job.answer

    def run(self):
        """Scores requests until `DeviceLost` is raised. Unanswered requests then go to the next process."""
        while True:
            jobs = [self._jobs.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    jobs.append(self._jobs.get_nowait())
            self.carry_out(jobs)

    def carry_out(self, jobs):
        """Scores the texts of several requests together, and answers each."""
        try:
            scores = iter(self.model.score([text for job in jobs for text in job.texts]))
            answers = [Answer.of({"scores": [next(scores) for _ in job.texts]}) for job in jobs]
        except Exception as error:
            if is_device_lost(error):
                self.log(traceback.format_exc().rstrip())
                raise DeviceLost(f"the device cannot be computed on any more: {first_line(error)}") from None
            if len(jobs) > 1:
                # One bad request must not fail the others.
                for job in jobs:
                    self.carry_out([job])
                return
            answers = [Answer.of_error(self._failure(error))]
        for job, answer in zip(jobs, answers, strict=True):
            job.answer = answer
            job.ended.set()

    def _failure(self, error):
        """The answer if a request breaks off."""
        if isinstance(error, LearnerError):
            return error
        if is_out_of_memory(error):
            return Failed(f"out of memory: {first_line(error)}", "lower the reward's `batch_size` or `max_length`")
        self.log(traceback.format_exc().rstrip())
        return Failed(f"{type(error).__name__}: {first_line(error)}", "the reward model's log has the details")


def serve(where, settings):
    """Loads the model of these settings (JSON), then listens until a signal."""
    model = RewardModel(Settings(parse_json(settings, "the settings"), "the settings"))
    print(model.describe(), file=sys.stderr, flush=True)
    connections.serve(where, ScoringSession(model, log=lambda line: print(line, file=sys.stderr, flush=True)))
