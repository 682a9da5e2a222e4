"""`python -m tamis.learner` with one of several ranks at fault, as TAMIS_FAULT says.

    stale   rank 0 cannot flush folders, as long as a file of the name TAMIS_FAULT_FILE is there
    hangs   rank 1 does not come back from the call that loads a model
    stands  rank 1 does not come back from its fourth pass that is held, and the others wait in the middle of it
    no room no rank has room for a whole gradient
    refuses only rank 1 refuses a pass that is held
    full    only rank 1 has no memory for a pass that is held
    fails   only rank 1 fails in the middle of a pass that is held
    nan     the third backward pass gives the last rank a gradient that is not finite
    waits   rank 0 waits in the middle of a checkpoint, as long as TAMIS_FAULT_FILE is there, and makes a file beside it
"""

import errno
import itertools
import os
import pathlib
import runpy
import stat
import time

import torch

from tamis.learner import checkpoint, ranks, sharding
from tamis.learner.learner import Learner
from tamis.learner.protocol import RequestError

# No test waits a minute.
ranks._LEAST_LATER, ranks._LEAST_PASS = 3.0, 5.0
fault, rank = os.environ["TAMIS_FAULT"], os.environ["RANK"]

if (fault, rank) == ("stale", "0"):
    flush = os.fsync

    def fsync(handle):
        if pathlib.Path(os.environ["TAMIS_FAULT_FILE"]).exists() and stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return flush(handle)

    os.fsync = fsync

if (fault, rank) == ("hangs", "1"):
    wait = Learner.wait

    def hang(self):
        wait(self)
        if self._policy is not None:
            time.sleep(1000)

    Learner.wait = hang

if fault == "no room":
    sharding._SHARE_FOR_GRADIENTS = 0.0

if (fault, rank) == ("stands", "1"):
    hold, holds = Learner.forward_hold, itertools.count(1)

    def stand(self, settings, columns):
        if next(holds) == 4:
            time.sleep(1000)
        return hold(self, settings, columns)

    Learner.forward_hold = stand

if (fault, rank) == ("refuses", "1"):

    def refuse(*_):
        raise RequestError("not here")

    begin = Learner.__init__

    def make(self, *arguments):
        begin(self, *arguments)
        self.calls["/v1/forward_hold"] = refuse

    Learner.__init__ = make

if fault in ("full", "fails") and rank == "1":

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.") if fault == "full" else ValueError("no such thing")

    Learner.forward_hold = fail

if (fault, int(rank) + 1) == ("nan", int(os.environ["WORLD_SIZE"])):
    backward, numbers = Learner.backward, itertools.count(1)

    def spoil(self, settings, columns):
        if next(numbers) == 3:
            self._held.outputs[0].register_hook(lambda gradient: gradient * float("nan"))
        return backward(self, settings, columns)

    Learner.backward = spoil

if (fault, rank) == ("waits", "0"):
    write = checkpoint.RankOutput.write

    def write_late(self, name, parts):
        told = pathlib.Path(os.environ["TAMIS_FAULT_FILE"])
        if name.startswith("optimizer") and told.exists():
            told.with_suffix(".waits").touch()
            while told.exists():
                time.sleep(0.01)
        write(self, name, parts)

    checkpoint.RankOutput.write = write_late

runpy.run_module("tamis.learner", run_name="__main__", alter_sys=True)
