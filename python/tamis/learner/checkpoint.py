"""Folders in Hugging Face layout, with the optimizer's state beside the weights: written, and read again.

    config.json, generation_config.json, model*.safetensors   for servers and other programs
    master/                  the weights in f32, if the above are in another type or under other names; frozen
                             ones, too
    optimizer.safetensors    first.NAME and second.NAME of every trained tensor, f32, however they are held; `step` in
                             the metadata
    adapter/                 the adapter in f32 in peft's format, if one is trained: the weights above have it
                             merged; a resume reads the adapter, and the policy that was opened
    critic/                  the critic in f32 with its optimizer.safetensors

transformers reads some architectures' tensors into fused ones (the experts of a mixture). Servers get them as in the
original files; `master/`, `critic/` and the moments are written and read as the decoder holds them.

The native engine reads these files, and this module reads the engine's. Tensors are written and read one at a time, so
the host never holds all of them. Every file is flushed to the disk before `save` returns.
"""

import errno
import json
import os
import struct
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .loading import is_spare
from .lora import AdapterNetwork
from .protocol import DiskError, FilesError, Refused, RequestError

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_TAGS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_CONFIG_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
# Most bytes of a file of tensors.
SHARD_BYTES = 5_000_000_000
# Bytes of one write.
_BLOCK = 1 << 24


class Output:
    """The written files of a folder: names, sizes and checksums."""

    def __init__(self, folder):
        self.folder = folder
        self.files = []

    def finish(self):
        """The files written so far."""
        self.flush_folder()
        return self.files

    def write(self, name, parts):
        """Writes one file whole and to the disk; `parts` gives its bytes."""
        path = self.folder / name
        num_bytes = crc = 0
        try:
            with open(path, "wb") as file:
                for part in parts:
                    file.write(part)
                    num_bytes += len(part)
                    crc = zlib.crc32(part, crc)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DiskError("write", path, error) from None
        self.files.append({"name": name, "bytes": num_bytes, "crc32": f"{crc:08x}"})

    def folder_within(self, name):
        """Makes a subfolder."""
        path = self.folder / name
        try:
            path.mkdir()
        except OSError as error:
            raise DiskError("create_folder", path, error) from None
        self.flush_folder(name)

    def flush_folder(self, name="."):
        """Flushes the entries of a folder to the disk."""
        handle = os.open(self.folder / name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _file_parts(tensors, dtype, metadata):
    """The bytes of a safetensors file of `(name, shape, make)`."""
    header, begin = {"__metadata__": {"format": "pt", **metadata}}, 0
    for name, shape, _ in tensors:
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": _TAGS[dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield struct.pack("<Q", len(head)) + head
    for _, _, make in tensors:
        for part in make().detach().reshape(-1).split(_BLOCK // 4):
            if part.numel():
                yield part.to(dtype).cpu().contiguous().view(torch.uint8).numpy().data


def _shards(tensors, dtype, max_bytes):
    """Groups tensors into files of at most so many bytes; a larger tensor gets a file of its own."""
    shards, room = [], 0
    for tensor in tensors:
        size = torch.Size(tensor[1]).numel() * dtype.itemsize
        if not shards or size > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= size
    return shards


def _unfuse(network, tensors, dtype, device):
    """The tensors under the names of the original files; only those of one layer are on the device at once."""
    layers = {}
    for tensor in tensors:
        layers.setdefault(_layer_of(tensor[0]), []).append(tensor)
    return [tensor for own in layers.values() for tensor in _Layer(network.module, own, dtype, device).tensors()]


class _Layer:
    """Tensors of one layer that are made together, when the first of them is needed."""

    def __init__(self, module, fused, dtype, device):
        self._module, self._fused, self._dtype, self._device = module, fused, dtype, device
        self._made = {}

    def tensors(self):
        """Each with name, shape and a function that makes it."""
        shapes = self._come_apart(lambda shape, _: torch.empty(shape, dtype=self._dtype, device="meta"))
        return [(name, list(one.shape), lambda name=name: self._make(name)) for name, one in shapes.items()]

    def _come_apart(self, values_of):
        from transformers.core_model_loading import revert_weight_conversion

        return revert_weight_conversion(self._module, {name: values_of(shape, make) for name, shape, make in self._fused})

    def _make(self, name):
        if name not in self._made:
            self._made = self._come_apart(lambda _, make: make().detach().to(self._device, self._dtype))
        # A second request makes the layer again.
        return self._made.pop(name)


def _layer_of(name):
    """The name of a tensor's layer (`model.layers.3`); its own name if it has none."""
    words = name.split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), len(words))
    return ".".join(words[: number + 1])


def write_tensors(output, where, tensors, dtype, max_bytes=SHARD_BYTES):
    """Writes `(name, shape, make)` as `model*.safetensors`, with an index if there are several files."""
    shards = _shards(tensors, dtype, max_bytes)
    index, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        output.write(where + file, _file_parts(shard, dtype, {}))
        for name, shape, _ in shard:
            index[name] = file
            total += torch.Size(shape).numel() * dtype.itemsize
    if len(shards) > 1:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        output.write(where + "model.safetensors.index.json", [text.encode()])


def model_files(network, dtype, untied):
    """The files that describe a folder's tensors, by name."""
    config = {name: value for name, value in network.source.config.items() if name != "torch_dtype"}
    config["dtype"] = _CONFIG_NAMES[dtype]
    # A model with vision has the flag at the top level.
    of = network.config if network.vision is None else network.decoder.config
    # transformers leaves the flag unchanged if the files had another head than the embedding.
    config["tie_word_embeddings"] = of.tie_word_embeddings and not (untied or network.has_own_head)
    # transformers 5 saves the rotary base only in `rope_parameters`. Programs that read the older keys silently take
    # their default (findings/mlx_lm_rope_parameters.sh), so both are written, as the native engine does.
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        config.setdefault("rope_theta", rope["rope_theta"])
        if rope.get("rope_type", "default") != "default":
            config.setdefault("rope_scaling", rope)
    files = {"config.json": json.dumps(config, indent=2, ensure_ascii=False).encode()}
    if network.source.generation is not None:
        files["generation_config.json"] = network.source.generation
    return files


def _write_model(output, where, network, tensors, dtype, untied, max_bytes):
    write_tensors(output, where, tensors, dtype, max_bytes)
    for name, content in model_files(network, dtype, untied).items():
        output.write(where + name, [content])


def _write_adapter(output, where, network, dtype):
    tensors = _whole("", network.weights, network.weights.masters)
    output.write(where + "adapter_model.safetensors", _file_parts(tensors, dtype, {}))
    output.write(where + "adapter_config.json", [network.adapter_config().encode()])


def _as_they_are(prefix, tensors):
    return [(prefix + name, list(tensor.shape), lambda tensor=tensor: tensor) for name, tensor in tensors.items()]


def _whole(prefix, weights, parts):
    """Weights or moments by name, whole."""

    def make(name):
        return lambda: weights.full(name, parts[name])

    return [(prefix + name, list(weights.shape(name)), make(name)) for name in parts]


def _write_optimizer(output, where, optimizer):
    weights = optimizer.weights
    tensors = _whole("first.", weights, optimizer.first) + _whole("second.", weights, optimizer.second)
    metadata = {"step": str(optimizer.num_steps)}
    output.write(where + "optimizer.safetensors", _file_parts(tensors, torch.float32, metadata))


def find_overflow(tensors, dtype):
    """The first tensor with finite weights that are too large for the type."""
    for name, _, make in tensors:
        values = make()
        if values.numel():
            least, most = (float(extreme) for extreme in torch.aminmax(values))
            largest = max(-least, most)
            if torch.tensor(largest).isfinite() and not torch.tensor(largest).to(dtype).isfinite():
                return {"tensor": name, "largest": largest}
    return None


def _untie(network, tensors):
    """The tensors with a head of their own, if the head is the embedding."""
    embedding = network.module.get_input_embeddings().weight
    name = next(name for name, parameter in network.module.named_parameters() if parameter is embedding)
    head = next(name + ".weight" for name, module in network.module.named_modules() if module is network.head.output)
    shape, make = next((shape, make) for other, shape, make in tensors if other == name)
    return [*tensors, (head, shape, make)]


def save(folder, content, dtype, untied, policy, optimizer, critic=None, critic_optimizer=None, max_bytes=SHARD_BYTES):
    """Writes `weights`, an `adapter` or a `checkpoint` into an empty folder, every file to the disk.

    Returns the answer of `save`: names, bytes and CRC-32 of the files, and `overflow` if weights were too large for
    `dtype` (then everything was written in f32).
    """
    output = output_into(folder, policy.options.ranks)
    has_adapter = isinstance(policy, AdapterNetwork)
    if content == "adapter":
        if not has_adapter:
            raise Refused("the policy has no adapter", "save its weights")
        overflow = find_overflow(_whole("", policy.weights, policy.weights.masters), DTYPES[dtype])
        _write_adapter(output, "", policy, torch.float32 if overflow else DTYPES[dtype])
        return {"files": output.finish(), "overflow": overflow}
    tensors = policy.file_tensors()
    overflow = find_overflow(tensors, DTYPES[dtype])
    written = torch.float32 if overflow else DTYPES[dtype]
    untied = untied and is_tied(policy)
    servable = servable_tensors(policy, tensors, untied, written)
    _write_model(output, "", policy, servable, written, untied, max_bytes)
    if content == "checkpoint":
        if has_adapter:
            output.folder_within("adapter")
            _write_adapter(output, "adapter/", policy, torch.float32)
            output.flush_folder("adapter")
        elif written != torch.float32 or policy.is_fused:
            output.folder_within("master")
            _write_model(output, "master/", policy, tensors, torch.float32, False, max_bytes)
            output.flush_folder("master")
        _write_optimizer(output, "", optimizer)
        if critic is not None:
            output.folder_within("critic")
            _write_model(output, "critic/", critic, critic.file_tensors(), torch.float32, False, max_bytes)
            _write_optimizer(output, "critic/", critic_optimizer)
            output.flush_folder("critic")
    return {"files": output.finish(), "overflow": overflow}


def output_into(folder, ranks):
    """Writes files into an empty folder, on the first of several ranks."""
    if ranks is None:
        return Output(empty_folder(folder))
    return RankOutput(ranks.agree(lambda: empty_folder(folder)), ranks)


class RankOutput(Output):
    """The output of one of several ranks. All of them gather tensor by tensor; the first one writes.

    If it cannot, it still gathers with the others, and raises at the end.
    """

    def __init__(self, folder, ranks):
        super().__init__(folder)
        self._writes, self._error = ranks.rank == 0, None

    def _try(self, act):
        if self._writes and self._error is None:
            try:
                act()
            except DiskError as error:
                self._error = error
            except OSError as error:
                self._error = DiskError("write", error.filename or self.folder, error)

    def write(self, name, parts):
        parts = iter(parts)
        self._try(lambda: super(RankOutput, self).write(name, parts))
        for _ in parts:
            pass

    def folder_within(self, name):
        self._try(lambda: super(RankOutput, self).folder_within(name))

    def flush_folder(self, name="."):
        self._try(lambda: super(RankOutput, self).flush_folder(name))

    def finish(self):
        files = super().finish()
        if self._error is not None:
            raise self._error
        return files


def servable_tensors(policy, tensors, untied, dtype, device="cpu"):
    """A policy's tensors as other programs load them, each with name, shape and a function that makes it.

    `tensors`: those of `file_tensors`; `untied`: with a head of their own; `dtype`: their type in the file. Tensors
    that the decoder holds fused are split on `device`.
    """
    servable = _untie(policy, tensors) if untied and is_tied(policy) else tensors
    return _unfuse(policy, servable, dtype, device) if policy.is_fused else servable


def empty_folder(folder):
    """Checks that a folder exists and is empty."""
    folder = Path(folder)
    if not folder.is_absolute():
        raise RequestError(f"the path {folder} is not absolute")
    if not folder.is_dir():
        hint = "a learner on another machine has to see the run directory, and `publish.dir`, under the same path"
        raise DiskError("open", folder, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), hint)
    if any(folder.iterdir()):
        raise RequestError(f"the folder {folder} is not empty")
    return folder


def is_tied(network):
    """Whether the output head is the embedding."""
    return network.module.get_output_embeddings() is not None and not network.has_own_head


def _open(path):
    try:
        # Read, not mapped: the pages must not stay in this process's memory.
        return safe_open(path, framework="pt", backend="pread")
    except (OSError, SafetensorError) as error:
        raise FilesError(f"failed to read {path}: {error}", path) from None


def read_tensors(folder, shapes, others=False):
    """Functions that read each named tensor of a folder of weights, or some rows of it, as f32 on the host.

    Names and shapes are checked before anything is read. A tensor that is not named is refused, unless others are
    allowed (`others`) or it may be ignored (`is_spare`).
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        paths = [single]
    elif index.exists():
        try:
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            paths = [folder / Path(file).name for file in files]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            message = f"{index} has no `weight_map` from tensor names to files of its folder"
            raise FilesError(message, index) from None
    else:
        message = f"{folder} holds neither model.safetensors nor model.safetensors.index.json"
        raise FilesError(message, folder)
    return _read_files(paths, shapes, "", others)


def _read_files(paths, shapes, prefix, others=False):
    found = {}
    for path in paths:
        file = _open(path)
        for full in file.keys():  # noqa: SIM118, it is no dict
            if not full.startswith(prefix):
                continue
            name = full.removeprefix(prefix)
            if name not in shapes:
                if others or is_spare(name):
                    continue
                raise FilesError(f"tensor `{full}` in {path} does not belong to this architecture", path)
            view = file.get_slice(full)
            if view.get_shape() != list(shapes[name]):
                expected = list(shapes[name])
                message = f"tensor `{full}` in {path} has shape {view.get_shape()}, expected {expected}"
                raise FilesError(message, path)
            if view.get_dtype() not in _TAGS.values():
                message = f"tensor `{full}` in {path} is of type {view.get_dtype()}, expected F32, BF16 or F16"
                raise FilesError(message, path)
            found[name] = _reader(file, path, full)
    for name in shapes:
        if name not in found:
            raise FilesError(f"tensor `{prefix}{name}` is missing from {paths[0].parent}", paths[0].parent)
    return found


def _reader(file, path, name):
    def read(rows=slice(None)):
        try:
            view = file.get_slice(name)
            values = (view[rows] if view.get_shape() else view[...]).float()
        except (OSError, SafetensorError) as error:
            raise FilesError(f"failed to read `{name}` from {path}: {error}", path) from None
        if not values.isfinite().all():
            message = f"tensor `{name}` in {path} holds numbers that are not finite: the file is damaged"
            raise FilesError(message, path)
        return values

    return read


def _read_step(path):
    step = (_open(path).metadata() or {}).get("step", "")
    if not (step.isascii() and step.isdigit() and len(step) < 19):
        raise FilesError(f"{path} has no number `step` in its metadata", path)
    return int(step)


def _prepare(folder, network, optimizer):
    """Checks a network's files; returns a function that copies them into weights and optimizer."""
    weights, frozen = network.weights, {}
    shapes = {name: weights.shape(name) for name in weights.masters}
    if isinstance(network, AdapterNetwork):
        values = _read_files([folder / "adapter" / "adapter_model.safetensors"], shapes, "")
    else:
        master = folder / "master"
        # Frozen tensors are read, too: the policy may have been opened from a rounded copy.
        frozen = network.frozen_parameters()
        shapes_of_all = shapes | {name: one.shape for name, one in frozen.items()}
        values = read_tensors(master if master.is_dir() else folder, shapes_of_all)
    path = folder / "optimizer.safetensors"
    step = _read_step(path)
    first = _read_files([path], shapes, "first.")
    second = _read_files([path], shapes, "second.")

    def put():
        with torch.no_grad():
            for name, own in weights.masters.items():
                rows = weights.rows(name)
                own.copy_(values[name](rows))
                for moments, read in ((optimizer.first, first), (optimizer.second, second)):
                    moments.put(name, read[name](rows))
        for name in frozen:
            network.put_frozen(name, values[name](network.rows(name)))

    def finish():
        optimizer.num_steps = step
        weights.clear_gradients()
        weights.refresh()

    return put, finish


def load(folder, parts):
    """Loads a checkpoint into networks: `parts` of `(subfolder, network, optimizer)`.

    Names, shapes and types are checked before anything changes; numbers while they are read. With several ranks each
    reads its own rows, and all of them fail if one does.
    """
    ranks = parts[0][1].options.ranks
    together = ranks.together if ranks is not None else lambda act: act()
    folder = Path(folder)
    if not folder.is_absolute():
        raise RequestError(f"the path {folder} is not absolute")
    prepared = together(lambda: [_prepare(folder / where, network, optimizer) for where, network, optimizer in parts])
    together(lambda: [put() for put, _ in prepared])
    for _, finish in prepared:
        finish()
