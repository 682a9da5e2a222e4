"""The device that is computed on: which one, and what its errors mean.

After an out-of-memory error the device goes on, and after one of a library that was asked for what it does not do.
After other errors of CUDA (an illegal access, an assertion that fails on the device, a device that fell off the bus)
every later call of the process fails, too: nothing but a new process computes again.
"""

import torch

from .protocol import Refused, RequestError

# Errors of memory that PyTorch raises as any other error: the host's, of CUDA beside PyTorch's own allocator, and
# where cuBLAS finds no room.
_OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def take_device(name, key="learner.device"):
    """The device of a name, which this process computes on from now: `auto` (a GPU where there is one), `cpu`, `cuda`,
    `cuda:N`. Errors call it `key`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"`{key}` must be auto, cpu or cuda, and is {name}") from None
    is_there = device.type == "cpu"
    if device.type == "cuda" and torch.cuda.is_available():
        is_there = (device.index or 0) < torch.cuda.device_count()
    if not is_there:
        raise Refused(f"this machine has no device {device}", f"set `{key}: auto`")
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        # What names no device, as a wait for it, means this one.
        torch.cuda.set_device(device)
        # PyTorch's first choice on an H100 makes a plan for every new shape, tens of milliseconds each; rows of
        # sequences have new shapes all the time.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def free_memory():
    """Bytes of the GPU's memory that may be taken: free ones, and what PyTorch holds and does not use."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def is_out_of_memory(error):
    """Whether an exception says that memory was not enough, of the host or of the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OUT_OF_MEMORY)


def is_device_lost(error):
    """Whether after this exception nothing can be computed on the device by this process."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    # Those of cuBLAS have no class of their own.
    is_of_device = isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
    return is_of_device and not _computes()


def _computes():
    """Whether the GPU still does what it is asked: an error that stays is raised by every later call, too."""
    try:
        return torch.cuda.is_available() and torch.ones(1, device="cuda").item() == 1.0
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False
