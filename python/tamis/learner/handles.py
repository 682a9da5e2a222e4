"""Weights in the memory of a GPU that a server on the same GPU reads directly (CUDA IPC).

The file `handles.json` has their places in the form of vLLM's `/update_weights`: `names`, `dtype_names`, `shapes`, and
`ipc_handles_pickled`, a list by the GPU's UUID of what rebuilds each tensor in another process.
"""

import base64
import json
import os
import pickle

import torch
from torch.multiprocessing.reductions import reduce_tensor

from . import checkpoint
from .protocol import Refused


def save(output, untied, policy):
    """Writes `handles.json` to a `checkpoint.Output`; returns the tensors to keep alive.

    They are copies in the type of passes, so that an update does not change what a server reads.
    """
    device = policy.module.get_input_embeddings().weight.device
    if device.type != "cuda":
        raise Refused("the learner has no GPU", "set publish.mode to folder, or learner.device to a GPU")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            message = "memory in expandable segments cannot be shared with a server"
            raise Refused(message, f"unset {name}, or set publish.mode to folder")
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    tensors = copy_tensors(policy, untied, policy.options.dtype)
    torch.cuda.synchronize(device)
    output.write("handles.json", [describe(tensors, gpu, lambda tensor: reduce_tensor(tensor)[1])])
    output.flush_folder()
    return tensors


def copy_tensors(policy, untied, dtype):
    """The policy's tensors as other programs load them, by name, each in memory of its own on the policy's device."""
    device = policy.module.get_input_embeddings().weight.device
    servable = checkpoint.servable_tensors(policy, policy.file_tensors(), untied, dtype, device)
    with torch.no_grad():
        return {
            name: make().to(device, dtype, copy=True, memory_format=torch.contiguous_format).reshape(shape)
            for name, shape, make in servable
        }


def describe(tensors, gpu, handle_of):
    """The content of `handles.json`. `handle_of`: gives what rebuilds a tensor elsewhere."""
    handles = [{gpu: handle_of(tensor)} for tensor in tensors.values()]
    content = {
        "names": list(tensors),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
        "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
    }
    return json.dumps(content).encode()
