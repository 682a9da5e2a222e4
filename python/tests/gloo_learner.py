"""`python -m tamis.learner` that sends weights to servers over gloo, without a GPU: the same code otherwise."""

import functools
import runpy

import played_vllm
from tamis.learner import transfer

# Small buffers, so that the weights of a tiny model fill many.
transfer.Transfer = functools.partial(transfer.Transfer, played_vllm.Gloo, 4096)
runpy.run_module("tamis.learner", run_name="__main__", alter_sys=True)
