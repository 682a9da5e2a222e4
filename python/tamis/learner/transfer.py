"""Weights from this process's memory to inference servers, by NCCL: a communicator for each server, and no file.

    save (`transfer`)  all ranks gather tensor by tensor; the first keeps them on the host: a snapshot
    join               a communicator of this process (rank 0) and all workers of one server, made in a thread
    send               the snapshot through it, packed into buffers that both sides cut alike
    write              the snapshot as a folder, for a server that it could not be sent to
    abort              ends a communicator

The workers' side is vLLM's (`--weight-transfer-config '{"backend": "nccl"}'`), which this process never imports; its
page "Trainer Without vLLM over HTTP" is the protocol. Only the controller talks to the servers.

Each server has a communicator of its own, so that one that hangs does not delay the others. The price is that the
weights leave this machine once for each server.

The snapshot is on the host, so that a server can get it at any time: because it was paused later than the others, was
restarted, or needs it a second time. Training continues meanwhile, a stuck server delays no rank, and no GPU holds more
than `NUM_BUFFERS` buffers. The price is a copy to the host and back.

Every wait here ends: at the controller's time-out, or when it aborts.
"""

import base64
import contextlib
import ctypes
import json
import secrets
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from . import checkpoint
from .device import is_out_of_memory
from .protocol import DiskError, Failed, LearnerError, Refused, RequestError, StateError

# Bytes after which a buffer is full; the tensor that fills it belongs to it whole.
BUFFER_BYTES = 256 << 20
# Buffers in flight at once to one server: one is filled while the other travels.
NUM_BUFFERS = 2
# Servers that are sent to at once, because buffers take memory of the GPU that also learns.
MOST_SENDS = 4
# Seconds that an uninterruptible call into NCCL may take beyond its time.
GRACE_SECONDS = 5.0
# Pause between two polls.
LOOK_SECONDS = 0.0005


class _GivenUp(Exception):
    """The communicator was aborted while something waited for it."""


@dataclass
class Snapshot:
    """Saved weights: names, types and shapes in order, and the bytes of each tensor."""

    names: list
    dtypes: list
    shapes: list
    tensors: list
    # The files beside them in a folder.
    model_files: dict
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def take(cls, policy, dtype, untied, keeps):
        """A copy of a policy's weights as servers load them, and the overflow in `dtype` (then all are f32).

        All ranks gather; `None` on a rank that does not keep them.
        """
        tensors = policy.file_tensors()
        overflow = checkpoint.find_overflow(tensors, checkpoint.DTYPES[dtype])
        written = torch.float32 if overflow else checkpoint.DTYPES[dtype]
        untied = untied and checkpoint.is_tied(policy)
        servable = checkpoint.servable_tensors(policy, tensors, untied, written)
        copies = []
        with torch.no_grad():
            for _, shape, make in servable:
                whole = make()
                if keeps:
                    copies.append(torch.empty(shape, dtype=written).copy_(whole.to(written).reshape(shape)))
                del whole
        if not keeps:
            return None, overflow
        names, shapes = [name for name, _, _ in servable], [list(shape) for _, shape, _ in servable]
        files = checkpoint.model_files(policy, written, untied)
        return cls(names, [written] * len(names), shapes, copies, files), overflow

    def describe(self, library):
        """The content of `transfer.json`."""
        dtypes = [str(dtype).removeprefix("torch.") for dtype in self.dtypes]
        content = {"snapshot": self.name, "library": library}
        content |= {"names": self.names, "dtype_names": dtypes, "shapes": self.shapes}
        return json.dumps(content).encode()

    def chunks(self, buffer_bytes):
        """The tensors' bytes in buffers: the receiver cuts by the same sizes."""
        chunk, size = [], 0
        for tensor in self.tensors:
            chunk.append(tensor.reshape(-1).view(torch.uint8))
            size += chunk[-1].numel()
            if size > buffer_bytes:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def write(self, folder, max_bytes=checkpoint.SHARD_BYTES):
        """Writes them as a folder that appears whole, with the files of `save`."""
        folder = Path(folder)
        part = folder.with_name(folder.name + ".part")
        try:
            if part.exists():
                shutil.rmtree(part)
            part.mkdir()
            output = checkpoint.Output(part)
            shapes = zip(self.names, self.shapes, self.tensors, strict=True)
            tensors = [(name, shape, lambda tensor=tensor: tensor) for name, shape, tensor in shapes]
            checkpoint.write_tensors(output, "", tensors, self.dtypes[0], max_bytes)
            for name, content in self.model_files.items():
                output.write(name, [content])
            output.finish()
            part.rename(folder)
        except OSError as error:
            raise DiskError("create_folder", folder, error) from None


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class _Config(ctypes.Structure):
    """The beginning of `ncclConfig_t` as of NCCL 2.14; later releases fill in the rest by its size and version."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int)
    ]  # fmt: skip

    @classmethod
    def not_blocking(cls):
        return cls(ctypes.sizeof(cls), 0xCAFEBEEF, 21400, 0)


class Nccl:
    """Rank 0 of a communicator of NCCL, by the library that PyTorch has loaded.

    NCCL is called directly: PyTorch's `ProcessGroupNCCL` has its unique id only in a private place, and its watchdog
    ends the whole process if a peer is lost or late, which here must cost only one communicator. Nothing blocks
    (`blocking=0`), so every wait can be ended.
    """

    _UINT8, _FLOAT32, _SUM, _IN_PROGRESS = 1, 7, 0, 7
    _library = None

    def __init__(self, num_ranks, device):
        self._num_ranks, self._device = num_ranks, device
        self._nccl = self.library()
        self._id, self._communicator = _UniqueId(), ctypes.c_void_p()
        self._lock, self._is_aborted = threading.Lock(), False
        self._check(self._nccl.ncclGetUniqueId(ctypes.byref(self._id)))
        self.unique_id = bytes(self._id)
        self._streams = None

    @classmethod
    def library(cls):
        """NCCL, as PyTorch ships it; `OSError` if there is none."""
        if Nccl._library is None:
            nccl = ctypes.CDLL("libnccl.so.2")
            pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
            nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p
            nccl.ncclGetLastError.argtypes = [pointer]
            nccl.ncclCommInitRankConfig.argtypes = [
                ctypes.POINTER(pointer), number, _UniqueId, number, ctypes.POINTER(_Config)
            ]  # fmt: skip
            nccl.ncclAllReduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
            nccl.ncclBroadcast.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
            nccl.ncclCommAbort.argtypes = [pointer]
            nccl.ncclCommGetAsyncError.argtypes = [pointer, ctypes.POINTER(number)]
            Nccl._library = nccl
        return Nccl._library

    @classmethod
    def is_available(cls):
        """Whether there is a GPU, and a library."""
        if not torch.cuda.is_available():
            return False
        try:
            cls.library()
        except OSError:
            return False
        return True

    @classmethod
    def describe(cls):
        """Name and version."""
        number = ctypes.c_int()
        cls.library().ncclGetVersion(ctypes.byref(number))
        return f"NCCL {number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    @classmethod
    def check_device(cls, device):
        """Refuses to send if this process cannot."""
        if device.type != "cuda":
            raise Refused("the learner has no GPU, and NCCL sends from one", "set publish.mode to folder, or learner.device to a GPU")

    def _check(self, result):
        if result not in (0, self._IN_PROGRESS):
            what = self._nccl.ncclGetErrorString(result).decode()
            last = (self._nccl.ncclGetLastError(None) or b"").decode().strip()
            raise Failed(f"NCCL: {what}" + (f": {last}" if last else ""))

    def _call(self, function, *arguments):
        with self._lock:
            if self._is_aborted:
                raise _GivenUp
            self._check(function(*arguments))

    def _is_settled(self):
        """Whether the last call is complete; raises if it failed, or a peer is gone."""
        state = ctypes.c_int()
        self._call(self._nccl.ncclCommGetAsyncError, self._communicator, ctypes.byref(state))
        self._check(state.value)
        return state.value != self._IN_PROGRESS

    def join(self, wait):
        """Connects to the workers, who all come at once, and adds up one number with them, which is their first
        operation.
        """
        with torch.cuda.device(self._device):
            config = _Config.not_blocking()
            arguments = ctypes.byref(self._communicator), self._num_ranks, self._id, 0, ctypes.byref(config)
            self._call(self._nccl.ncclCommInitRankConfig, *arguments)
            wait(self._is_settled)
            self._streams = [torch.cuda.Stream(self._device) for _ in range(NUM_BUFFERS)]
            with self.place(0):
                one = torch.zeros(1, device=self._device)
                where, stream = one.data_ptr(), torch.cuda.current_stream().cuda_stream
                self._call(
                    self._nccl.ncclAllReduce, where, where, 1, self._FLOAT32, self._SUM, self._communicator, stream
                )
                wait(self._is_settled)
                wait(self._reached())

    @contextlib.contextmanager
    def place(self, number):
        """A context whose GPU work (filling and sending one buffer) is ordered, beside other work."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._streams[number]):
            yield

    def _reached(self):
        event = torch.cuda.Event()
        event.record()
        return lambda: self._is_settled() and event.query()

    def broadcast(self, buffer, wait):
        """Begins to send a buffer to all workers; returns a function that checks whether it has been sent."""
        where, stream = buffer.data_ptr(), torch.cuda.current_stream().cuda_stream
        arguments = where, where, buffer.numel(), self._UINT8, 0, self._communicator, stream
        self._call(self._nccl.ncclBroadcast, *arguments)
        wait(self._is_settled)
        return self._reached()

    def abort(self):
        """Ends it at once, whatever runs on it."""
        # A call that holds the lock for ever is one that the abort ends.
        self._is_aborted = True
        has_lock = self._lock.acquire(timeout=GRACE_SECONDS / 2)
        try:
            communicator, self._communicator = self._communicator, ctypes.c_void_p()
            if communicator:
                self._nccl.ncclCommAbort(communicator)
        finally:
            if has_lock:
                self._lock.release()


class _Meeting:
    """A communicator with the workers of one server."""

    def __init__(self, group, seconds):
        self.name, self.group = secrets.token_hex(8), group
        self._stop, self._joined, self._error = threading.Event(), threading.Event(), None
        self.sends = threading.Lock()
        wait = self.waiting(seconds, "the server's workers did not join")

        def join():
            try:
                group.join(wait)
            except Exception as error:
                self._error = error
            self._joined.set()

        threading.Thread(target=join, daemon=True).start()

    def waiting(self, seconds, late):
        """A function that waits until a condition holds, the time is over, or the communicator is aborted."""
        until = time.monotonic() + seconds

        def wait(condition):
            while not condition():
                if self._stop.is_set():
                    raise _GivenUp
                if time.monotonic() > until:
                    raise Failed(f"{late} within {seconds:g} s")
                time.sleep(LOOK_SECONDS)

        return wait

    def wait_until_joined(self, wait):
        """Waits until all workers have connected; raises the error if they did not."""
        wait(self._joined.is_set)
        if self._error is not None:
            raise self._error

    def give_up(self):
        """Ends its waits, and then the communicator; returns whether it is gone."""
        self._stop.set()
        gone = threading.Event()

        def abort():
            with contextlib.suppress(Exception):
                self.group.abort()
            gone.set()

        threading.Thread(target=abort, daemon=True).start()
        return gone.wait(GRACE_SECONDS)


class Transfer:
    """The snapshot for servers, and the communicators to them.

    `backend`: the library, `Nccl` or a stand-in. Calls come from threads of connections, while the learner computes.
    """

    def __init__(self, backend=Nccl, buffer_bytes=BUFFER_BYTES):
        self._backend, self._buffer_bytes = backend, buffer_bytes
        self.calls = {
            "/v1/transfer/join": self.join,
            "/v1/transfer/send": self.send,
            "/v1/transfer/write": self.write,
            "/v1/transfer/abort": self.abort,
        }
        self._lock, self._writes = threading.Lock(), threading.Lock()
        self._snapshot, self._device, self._meetings = None, None, {}
        self._slots = threading.Semaphore(MOST_SENDS)
        # What a communicator that could not be ended may still read.
        self._held = []

    def is_available(self):
        """Whether this process can send."""
        return self._backend.is_available()

    def forget(self):
        """Drops snapshot and communicators."""
        with self._lock:
            meetings, self._meetings, self._snapshot = list(self._meetings.values()), {}, None
        for meeting in meetings:
            meeting.give_up()

    def save(self, output, policy, dtype, untied, ranks):
        """Replaces the snapshot and writes its description (`transfer.json`); returns the answer of `save`."""
        device = policy.module.get_input_embeddings().weight.device
        self._backend.check_device(device)
        # There may be no room for both; a thread that sends the last one keeps it until it is sent.
        self._snapshot = None
        snapshot, overflow = Snapshot.take(policy, dtype, untied, ranks is None or ranks.rank == 0)
        content = b"" if snapshot is None else snapshot.describe(self._backend.describe())
        output.write("transfer.json", [content])
        files = output.finish()
        self._snapshot, self._device = snapshot, device
        return {"files": files, "overflow": overflow}

    def _find_snapshot(self, settings):
        name, snapshot = settings.text("snapshot"), self._snapshot
        if snapshot is None or snapshot.name != name:
            raise StateError(f"the snapshot {name} is not held any more", "save another")
        return snapshot

    def join(self, settings):
        """Begins to make a communicator with so many workers of a server, and returns what the server needs for it."""
        workers = settings.count("workers", least=1)
        seconds = settings.number("timeout", above=0.0)
        settings.finish()
        if self._snapshot is None:
            raise StateError("there is nothing to send", "save it first (`transfer`)")
        meeting = _Meeting(self._backend(1 + workers, self._device), seconds)
        with self._lock:
            self._meetings[meeting.name] = meeting
        init_info = {
            "nccl_unique_id_b64": base64.b64encode(meeting.group.unique_id).decode(),
            "rank_offset": 1,
            "world_size": 1 + workers,
            "packed": True,
            "packed_buffer_size_bytes": self._buffer_bytes,
            "packed_num_buffers": NUM_BUFFERS,
        }
        return {"communicator": meeting.name, "init_info": init_info}

    def _find_meeting(self, settings):
        name = settings.text("communicator")
        with self._lock:
            meeting = self._meetings.get(name)
        if meeting is None:
            raise StateError(f"there is no communicator {name}", "make another")
        return meeting

    def send(self, settings):
        """Sends the snapshot through a communicator; returns when all workers have it. Otherwise aborts the
        communicator.
        """
        meeting, snapshot = self._find_meeting(settings), self._find_snapshot(settings)
        seconds = settings.number("timeout", above=0.0)
        settings.finish()
        if not meeting.sends.acquire(blocking=False):
            raise StateError("the communicator is sending already")
        buffers, outcome, ended = [None] * NUM_BUFFERS, [], threading.Event()
        wait = meeting.waiting(seconds, "the server's workers did not take the weights")

        def work():
            try:
                meeting.wait_until_joined(wait)
                wait(lambda: self._slots.acquire(blocking=False))
                try:
                    self._send(meeting.group, snapshot, buffers, wait)
                finally:
                    self._slots.release()
            except Exception as error:
                outcome.append(error)
            ended.set()

        try:
            threading.Thread(target=work, daemon=True).start()
            # A late call reports itself, unless it hangs in the library.
            has_ended = ended.wait(seconds + GRACE_SECONDS)
            error = outcome[0] if outcome else None if has_ended else Failed(f"the transfer did not end within {seconds:g} s")
            if error is not None:
                is_gone = self._drop(meeting)
                if not (is_gone and ended.wait(GRACE_SECONDS)):
                    self._held.append(buffers)
                raise _as_learner_error(error)
        finally:
            meeting.sends.release()
        return {}

    def _send(self, group, snapshot, buffers, wait):
        sent = [None] * NUM_BUFFERS
        for number, chunk in enumerate(snapshot.chunks(self._buffer_bytes)):
            slot = number % NUM_BUFFERS
            if sent[slot] is not None:
                wait(sent[slot])
            with group.place(slot):
                buffers[slot] = None
                buffers[slot] = torch.empty(sum(map(len, chunk)), dtype=torch.uint8, device=self._device)
                begin = 0
                for part in chunk:
                    buffers[slot][begin : begin + len(part)].copy_(part)
                    begin += len(part)
                sent[slot] = group.broadcast(buffers[slot], wait)
        for is_sent in sent:
            if is_sent is not None:
                wait(is_sent)

    def _drop(self, meeting):
        with self._lock:
            self._meetings.pop(meeting.name, None)
        return meeting.give_up()

    def write(self, settings):
        """Writes the snapshot as a folder, once."""
        snapshot = self._find_snapshot(settings)
        folder = settings.text("folder")
        settings.finish()
        if not Path(folder).is_absolute():
            raise RequestError(f"the path {folder} is not absolute")
        with self._writes:
            if not Path(folder).is_dir():
                snapshot.write(folder)
        return {}

    def abort(self, settings):
        """Aborts a communicator, if it exists."""
        name = settings.text("communicator")
        settings.finish()
        with self._lock:
            meeting = self._meetings.get(name)
        if meeting is not None:
            self._drop(meeting)
        return {}


def _as_learner_error(error):
    if isinstance(error, LearnerError):
        return error
    if isinstance(error, _GivenUp):
        return Failed("the communicator was dropped")
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    hint = "lower `train.micro_batch_tokens`, or set `publish.mode: folder`" if is_out_of_memory(error) else None
    return Failed(text, hint)
