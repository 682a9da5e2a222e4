"""The folder of a checkpoint whose weights stay at the server: the model's configuration, and the path of the weights.
"""

import json
import os
import pathlib
import zlib
from dataclasses import asdict, dataclass

from ..learner.messages import DiskError, FilesError, RequestError

# The file by which tamis recognises a folder without weights.
ELSEWHERE = "elsewhere.json"
CONFIG = "config.json"
_COPIED = (CONFIG, "generation_config.json")


@dataclass(frozen=True)
class Place:
    """The place of weights and moments: `path` at the server, an adapter of this rank on the base model. `adapter`: the
    address of an archive of the weights.
    """

    path: str
    adapter: str
    url: str
    base_model: str
    rank: int
    num_steps: int
    num_parameters: int


def read_json(path, operation="read"):
    """A JSON object in a file."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        if error.errno is None or isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FilesError(f"there is no file {path}", path) from None
        raise DiskError(operation, path, error) from None
    except ValueError as error:
        raise FilesError(f"{path} cannot be read as JSON: {error}", path) from None
    if not isinstance(values, dict):
        raise FilesError(f"{path} holds no JSON object", path)
    return values


def num_parameters(folder):
    """Number of weights in the safetensors files of a folder, by their headers; 0 without any."""
    total = 0
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            for name, entry in header.items():
                size = 1
                for length in [] if name == "__metadata__" else entry["shape"]:
                    size *= length
                total += size * (name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError):
            # Only for people.
            return 0
    return total


def write(folder, model_folder, place):
    """Writes a checkpoint into an existing, empty folder; returns its files as the page has them."""
    try:
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise DiskError("open", folder, error) from None
    if not is_empty:
        raise RequestError(f"the folder {folder} is not empty")
    contents = {}
    for name in _COPIED:
        source = model_folder / name
        if name == CONFIG or source.exists():
            try:
                contents[name] = source.read_bytes()
            except OSError as error:
                raise DiskError("read", source, error) from None
    what = f"an adapter of rank {place.rank} on {place.base_model}"
    where = f"{place.path} at {place.url}, {what}, whose archive is at {place.adapter}"
    contents[ELSEWHERE] = json.dumps({"where": where, "tinker": asdict(place)}, indent=1).encode() + b"\n"
    return [_write_file(folder, name, data) for name, data in contents.items()]


def _write_file(folder, name, data):
    path = folder / name
    try:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DiskError("write", path, error) from None
    return {"name": name, "bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}


def read(folder):
    """The `Place` that a checkpoint names."""
    path = pathlib.Path(folder) / ELSEWHERE
    values = read_json(path).get("tinker")
    kinds = {
        "path": str,
        "adapter": str,
        "url": str,
        "base_model": str,
        "rank": int,
        "num_steps": int,
        "num_parameters": int,
    }
    if not isinstance(values, dict) or any(not isinstance(values.get(name), kind) for name, kind in kinds.items()):
        raise FilesError(f"{path} does not name weights at a server of Tinker's API", path)
    return Place(**{name: values[name] for name in kinds})
