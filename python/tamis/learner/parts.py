"""Models read in parts: several ranks that share one out read only their own part of its files.

    headers of the files --Plan--> a module whose parameters have no values, and the sources of their rows
    sharding.shard       --------> this rank's rows of one parameter after the other, onto its device

A rank's memory holds its own part and the next tensor's rows, or those of one layer if transformers makes one tensor of
several (the experts of a mixture) other than row by row. All ranks of a machine together read a model once (each may
read a tensor that is made of several). If one rank read and sent to the others, the disk would read as much, and the
network would carry it too.

Names, shapes and conversions are checked by the headers only, as in transformers: `Plan` replaces the part of its
`from_pretrained` that reads values.
"""

import contextlib
import copy
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from .protocol import FilesError

# Numbers of two tensors that are compared at a time.
_CHUNK = 1 << 24


class Whole(Exception):
    """A model cannot be read in parts; the text gives the reason."""


class Plan:
    """The sources of the rows of a module's parameters, found while transformers makes it (`reading`).

    `sources` has a function by parameter that gives rows `begin` to `end` of it.
    """

    def __init__(self, folder):
        self.folder, self.sources = folder, {}

    @contextlib.contextmanager
    def reading(self):
        """In this context transformers' `from_pretrained` makes modules without values."""
        own = PreTrainedModel.__dict__["_load_pretrained_model"]
        PreTrainedModel._load_pretrained_model = staticmethod(self._stand_in)
        try:
            yield
        finally:
            PreTrainedModel._load_pretrained_model = own

    def _stand_in(self, model, _state_dict, files, settings, *_arguments, **_more):
        try:
            return self._plan(model, files, settings), None
        except (AssertionError, AttributeError, ImportError, IndexError, KeyError, TypeError) as error:
            raise Whole(f"transformers reads it in a way that is not known here ({type(error).__name__}: {error})") from error

    def _plan(self, model, files, settings):
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key
        from transformers.utils.loading_report import LoadStateDictInfo

        views, mapping = _views(files), settings.weight_mapping or []
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        converter_of = {pattern: one for one in converters for pattern in one.source_patterns}
        tensors = model.state_dict()
        found = LoadStateDictInfo(set(tensors), set(), set(), [], {}, set())
        conversions = {}
        for key in sorted(views, key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, tensors)
            if name not in tensors and key in tensors:
                name, pattern = rename_source_key(key, [], [], model.base_model_prefix, tensors)
            if name in tensors:
                one = conversions.setdefault(name, _Conversion(model, name, pattern and converter_of[pattern]))
                one.keys.setdefault(pattern or key, []).append(key)
            elif pattern is None:
                found.unexpected_keys.add(name)
            else:
                targets = converter_of[pattern].target_patterns
                found.unexpected_keys |= {name.replace(targets[0], one) for one in targets}
        dtype_of = _dtypes(tensors, settings)
        for conversion in conversions.values():
            conversion.views, conversion.dtype = views, dtype_of(conversion.name)
            for name, shape in conversion.shapes().items():
                if name not in tensors:
                    found.unexpected_keys.add(name)
                    continue
                found.missing_keys.discard(name)
                if list(tensors[name].shape) != shape:
                    found.mismatched_keys.add((name, torch.Size(shape), tensors[name].shape))
                    continue
                self._put(model, name, tensors[name].shape, conversion)
        self._leave_out_copies(model, found, conversions)
        model._weight_conversions = [one for one in mapping if one.was_used()]
        return found

    def _put(self, model, name, shape, conversion):
        """A parameter without values in place of one, or a buffer as in the files."""
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        if own in module._buffers:
            buffer = conversion.rows(name, 0, shape[0] if shape else 0)
            buffer._is_hf_initialized = True
            setattr(module, own, buffer)
            return
        if not shape:
            raise Whole(f"`{name}` is a single number")
        # On the host, so that nothing made from it lands on another device.
        parameter = torch.nn.Parameter(torch.zeros((), dtype=conversion.dtype).expand(shape), conversion.dtype.is_floating_point)
        # transformers draws no values for it.
        parameter._is_hf_initialized = True
        setattr(module, own, parameter)
        self.sources[parameter] = lambda begin, end: self._read(conversion, name, begin, end)

    def _read(self, conversion, name, begin, end):
        try:
            rows = conversion.rows(name, begin, end)
        except (OSError, SafetensorError, Whole) as error:
            raise FilesError(f"failed to read `{name}` from {self.folder}: {error}", self.folder) from None
        if rows.numel() and not torch.stack(torch.aminmax(rows)).isfinite().all():
            raise FilesError(f"tensor `{name}` in {self.folder} holds numbers that are not finite", self.folder)
        return rows

    def _leave_out_copies(self, model, found, conversions):
        """If the files hold both of a tied pair, the second counts as missing if it equals the first.

        transformers ties what is missing, and keeps apart what differs.
        """
        for second, first in model.all_tied_weights_keys.items():
            pair = [conversions.get(name) for name in (first, second)]
            if None in pair or {first, second} & found.missing_keys:
                continue
            shape = model.get_parameter(first).shape
            if shape == model.get_parameter(second).shape and _are_equal(*pair, shape):
                found.missing_keys.add(second)
            else:
                # What transformers compares.
                parameter = model.get_parameter(second)
                parameter.data = torch.ones((), dtype=parameter.dtype).expand(parameter.shape)


@dataclass
class _Conversion:
    """Tensors of the files that become one parameter (or several), through a converter of transformers or directly."""

    model: PreTrainedModel
    name: str
    converter: object
    # Names in the files by their pattern in the converter.
    keys: dict = field(default_factory=dict)
    views: dict | None = None
    dtype: torch.dtype | None = None
    _shapes: dict = field(default_factory=dict)
    _made: dict = field(default_factory=dict)

    def shapes(self):
        """Shapes of its results, by name."""
        if self.converter is None:
            (key,) = self._only()
            return {self.name: self.views[key].get_shape()}
        made = self._convert(lambda key: torch.empty(self.views[key].get_shape(), dtype=self.dtype, device="meta"))
        self._shapes = {name: list(one.shape) for name, one in made.items()}
        return self._shapes

    def rows(self, name, begin, end):
        """Rows of its results; each can be requested once."""
        if self.converter is None:
            (key,) = self._only()
            view = self.views[key]
            return (view[begin:end] if view.get_shape() else view[...]).to(self.dtype)
        shape = self._shapes[name]
        if self._is_by_rows(shape):
            if begin == end:
                return torch.empty(0, *shape[1:], dtype=self.dtype)
            return self._convert(self._read, slice(begin, end))[name]
        if name not in self._made:
            self._made = self._convert(self._read)
        return self._made.pop(name)[begin:end].clone()

    def _only(self):
        keys = [key for keys in self.keys.values() for key in keys]
        if len(keys) > 1:
            raise Whole(f"several tensors become `{self.name}`: {', '.join(keys)}")
        return keys

    def _read(self, key):
        return self.views[key][...].to(self.dtype)

    def _is_by_rows(self, shape):
        """Whether row i depends only on the i-th tensor of each pattern: stacked experts."""
        from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

        first, *others = self.converter.operations
        keeps = all(
            (isinstance(one, Concatenate) and one.dim > 0) or (isinstance(one, Transpose) and min(one.dim0, one.dim1) > 0)
            for one in others
        )
        lengths = {len(keys) for keys in self.keys.values()}
        return isinstance(first, MergeModulelist) and first.dim == 0 and keeps and lengths == {shape[0]}

    def _convert(self, read, rows=slice(None)):
        converter = copy.deepcopy(self.converter)
        for pattern, keys in self.keys.items():
            for key in keys[rows]:
                # Read when it is needed.
                converter.add_tensor(self.name, key, pattern, lambda key=key: read(key))
        try:
            made = converter.convert(self.name, model=self.model, config=self.model.config)
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise Whole(f"`{self.name}` cannot be made from only its files' tensors ({error})") from error
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}


def _views(files):
    """Tensors of safetensors files by name; none is read yet."""
    # Read, not mapped: the pages must not stay in this process's memory.
    opened = [safe_open(file, framework="pt", backend="pread") for file in files]
    return {key: file.get_slice(key) for file in opened for key in file.keys()}  # noqa: SIM118, it is no dict


def _dtypes(tensors, settings):
    """A function that gives the type in which transformers loads a tensor."""
    from transformers.core_model_loading import build_glob_alternation

    plan = settings.dtype_plan or {}
    pattern, name_of, _ = build_glob_alternation(list(plan)) if plan else (None, None, None)

    def dtype_of(name):
        match = pattern and pattern.search(name)
        return plan[name_of[match.lastgroup]] if match else tensors[name].dtype

    return dtype_of


def _are_equal(one, other, shape):
    step = max(1, _CHUNK // max(1, shape[1:].numel()))
    parts = ((begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step))
    return all(torch.equal(one.rows(one.name, *part), other.rows(other.name, *part)) for part in parts)
