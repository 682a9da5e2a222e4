"""The device of all computation: which one, and the meaning of its errors.

After an out-of-memory error the device still works, and after an unsupported library call, too. After other errors of
CUDA (an illegal access, a failed assertion on the device, a device that fell off the bus) every later call of the
process fails: only a new process can compute again.
"""

import torch

from .protocol import Refused, RequestError

# Memory errors that PyTorch raises as any other error: of the host, of CUDA outside PyTorch's allocator, and of cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def take_device(name, key="learner.device"):
    """The device with this name, which becomes the process's current one: `auto` (a GPU if there is one), `cpu`,
    `cuda`, `cuda:N`. Errors call it `key`.
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
        # Calls that name no device, such as a wait for it, mean this one.
        torch.cuda.set_device(device)
        # PyTorch's first choice on an H100 makes a plan for every new shape, tens of milliseconds each, and rows of
        # sequences always have new shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def free_memory():
    """Bytes of GPU memory that can be taken: free ones, and those that PyTorch holds unused."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def is_out_of_memory(error):
    """Whether an exception means that the host or the device is out of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OUT_OF_MEMORY)


def is_device_lost(error):
    """Whether this exception means that the process can no longer compute on the device."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    # Errors of cuBLAS have no class of their own.
    is_of_device = isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
    return is_of_device and not _computes()


def _computes():
    """Whether the GPU still computes: a lasting error is raised by every later call, too."""
    try:
        return torch.cuda.is_available() and torch.ones(1, device="cuda").item() == 1.0
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False
