"""Keys and values of sequences that are being generated, preallocated: a row for each sample, and one for its prompt.

    prompts   slot 0   prompt A ................   [slots, heads, columns, width] for each layer
              slot 1   prompt B .........
    rows      row 0    completion of A | room ..   [rows, heads, columns, width]
              row 1    completion of A | room ..
              row 2    completion of B | room ..

The samples of a prompt share its slot, so that a group of eight holds its prompt once, and reads it once a step
(`one_query`). Each row begins at column 0, so that completions of all lengths are computed together, and the next
sample takes a free row.
"""

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from .one_query import Seen, attend_rows

CACHED = "tamis_cached"

# Columns of a row are read in multiples of this.
COLUMNS = 16
# Keyword arguments that change nothing if each row attends to all of itself.
_HARMLESS = {
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sliding_window", "softcap", "position_ids",
    "use_cache", "cache_position", "output_attentions", "output_hidden_states", "return_dict", "is_causal",
    "layer_idx", "past_key_values", "position_embeddings", "target_dtype", "implementation", "output_router_logits",
}  # fmt: skip


class CacheRefused(Exception):
    """The model stores or requests something that rows of keys and values cannot hold."""


class PromptStates(Cache):
    """Keys and values of prompts that are computed for the first time, by layer: [1, heads, M, width]."""

    def __init__(self):
        super().__init__(layers=[])
        self.states = {}

    def update(self, key_states, value_states, layer_idx, *_, **__):
        """Stores a layer's states, and returns them."""
        if layer_idx in self.states:
            raise CacheRefused(f"layer {layer_idx} stores its states twice")
        self.states[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def part(self, begin, end):
        """One prompt's: by layer, [heads, M, width] each."""
        return {layer: tuple(one[0, :, begin:end] for one in pair) for layer, pair in self.states.items()}


class Store:
    """Keys and values by layer, `[rows, heads, columns, width]` each, which grow and keep what they hold."""

    def __init__(self):
        self.keys, self.values = {}, {}
        self.num_rows = self.num_columns = 0

    def reserve(self, states, num_rows, num_columns):
        """Room for so many rows of so many columns, of layers of these shapes. Returns whether it was moved for that."""
        if num_rows <= self.num_rows and num_columns <= self.num_columns:
            return False
        rows, columns = max(num_rows, self.num_rows), max(num_columns, self.num_columns)
        for place, tensors in enumerate((self.keys, self.values)):
            for layer, pair in states.items():
                heads, _, width = pair[place].shape
                new = torch.zeros(rows, heads, columns, width, dtype=pair[place].dtype, device=pair[place].device)
                old = tensors.pop(layer, None)
                if old is not None:
                    new[: self.num_rows, :, : self.num_columns] = old
                tensors[layer] = new
        self.num_rows, self.num_columns = rows, columns
        return True

    def place(self, row, states):
        """Puts states, `[heads, M, width]` by layer, at the beginning of a row."""
        for layer, pair in states.items():
            for tensors, one in zip((self.keys, self.values), pair, strict=True):
                tensors[layer][row, :, : one.shape[1]] = one

    def move(self, source, target, length):
        """Moves a row to another's place."""
        for tensors in (*self.keys.values(), *self.values.values()):
            tensors[target, :, :length] = tensors[source, :, :length]


class RowCache(Cache):
    """Prompts and rows; `step` sets which of the rows are computed next."""

    def __init__(self):
        super().__init__(layers=[])
        self.prompts, self.rows = Store(), Store()
        self._seen = None

    def take_prompt(self, row, slot, length):
        """Copies the first tokens of a prompt's slot to the beginning of a row."""
        pairs = zip((self.prompts.keys, self.prompts.values), (self.rows.keys, self.rows.values), strict=True)
        for prompts, rows in pairs:
            for layer, prompt in prompts.items():
                rows[layer][row, :, :length] = prompt[slot, :, :length]

    def step(self, lengths, prompt_lengths, groups, longest):
        """Before one more token of the first rows: keywords of the decoder.

        lengths, prompt_lengths: i64 [n], tokens of each row's completion in the cache, and of its prompt. groups: the
        rows of each slot (`one_query.Groups`). longest: no row has more tokens of a completion.
        """
        columns = min(-(-(longest + 1) // COLUMNS) * COLUMNS, self.rows.num_columns)
        self._seen = Seen(lengths, prompt_lengths, groups, columns, self.prompts)
        return {
            "position_ids": (prompt_lengths + lengths)[:, None], "past_key_values": self, "use_cache": True,
            "cu_seq_lens_q": self._seen, "cu_seq_lens_k": self._seen, "max_length_q": 1, "max_length_k": columns,
        }  # fmt: skip

    def update(self, key_states, value_states, layer_idx, *_, **__):
        """Stores a token's states in each row, and returns the rows."""
        seen = self._seen
        found = []
        for tensors, states in ((self.rows.keys, key_states), (self.rows.values, value_states)):
            if layer_idx not in tensors or states.shape[2] != 1:
                raise CacheRefused("the model stores states in another way than one for each token and layer")
            tensor = tensors[layer_idx]
            # One row of numbers for each head: much less to compute than places in three dimensions.
            tensor.view(-1, tensor.shape[3]).index_copy_(0, seen.places(tensor), states.flatten(0, 2))
            found.append(tensor[: seen.num_rows, :, : seen.num_columns])
        return tuple(found)

    def get_seq_length(self, layer_idx=0):
        """No single number: rows have lengths of their own. The decoder is given positions."""
        return 0


def attend_cached(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    """Query [n, H, 1, D] over the prompts, and over keys and values [n, K, columns, D] of rows, to [n, 1, H, D]."""
    seen = more.get("cu_seq_lens_k")
    if attention_mask is not None or dropout or not isinstance(seen, Seen):
        raise CacheRefused(f"{CACHED} attends one token of each row to the row, without mask and dropout")
    for argument, given in more.items():
        if argument not in _HARMLESS and given is not None and given is not False:
            raise CacheRefused(f"{CACHED} does not compute `{argument}`")
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    window, cap = more.get("sliding_window"), more.get("softcap")
    attended = attend_rows(query[:, :, 0], key, value, seen, module.layer_idx, scaling, window, cap)
    return attended[:, None], None


# The mask interface does not know this name, so it makes no mask for it.
AttentionInterface.register(CACHED, attend_cached)
