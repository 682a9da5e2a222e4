"""Keys and values of sequences that are being generated, preallocated, a row for each.

    row 0   prompt | completion so far | room ...       [rows, heads, columns, width] for each layer
    row 1   prompt | completion | room ..........

Each row begins at column 0 and is as long as its sequence, so that sequences of all lengths are computed together, and
the next sequence takes a free row.
"""

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache

CACHED = "tamis_cached"

# Columns of a row are read in multiples of this.
COLUMNS = 64
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
        """Copies of one prompt's: by layer, [heads, M, width] each."""
        return {
            layer: tuple(one[0, :, begin:end].clone() for one in pair) for layer, pair in self.states.items()
        }


class RowCache(Cache):
    """The rows; `step` sets how many of them are computed next, and their positions."""

    def __init__(self):
        super().__init__(layers=[])
        self.keys, self.values = {}, {}
        self.num_rows = self.num_columns = 0
        self._at = None

    def reserve(self, states, num_rows, num_columns):
        """Room for so many rows of so many columns, of layers of these shapes; existing content stays."""
        if num_rows <= self.num_rows and num_columns <= self.num_columns:
            return
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

    def place(self, row, states, length):
        """Puts a prompt's states into a row."""
        for layer, (keys, values) in states.items():
            self.keys[layer][row, :, :length] = keys
            self.values[layer][row, :, :length] = values

    def move(self, source, target, length):
        """Moves a row to another's place."""
        for tensors in (*self.keys.values(), *self.values.values()):
            tensors[target, :, :length] = tensors[source, :, :length]

    def step(self, lengths, longest):
        """Before one more token of the first rows, which have these lengths (i64 [n]): keywords of the decoder."""
        num_columns = min(-(-(longest + 1) // COLUMNS) * COLUMNS, self.num_columns)
        self._at = _Step(lengths, num_columns)
        return {"cu_seq_lens_q": self._at, "cu_seq_lens_k": self._at, "max_length_q": 1, "max_length_k": num_columns}

    def update(self, key_states, value_states, layer_idx, *_, **__):
        """Stores a token's states in each row, and returns all of the rows."""
        at = self._at
        found = []
        for tensors, states in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx not in tensors or states.shape[2] != 1:
                raise CacheRefused("the model stores states in another way than one for each token and layer")
            tensor = tensors[layer_idx]
            tensor[at.rows, :, at.lengths] = states[:, :, 0]
            found.append(tensor[: at.num_rows, :, : at.num_columns])
        return tuple(found)

    def get_seq_length(self, layer_idx=0):
        """No single number: rows have lengths of their own. The decoder is given positions."""
        return 0


class _Step:
    """The positions of a step's rows, and their masks by window."""

    def __init__(self, lengths, num_columns):
        self.lengths, self.num_columns, self.num_rows = lengths, num_columns, lengths.shape[0]
        self.rows = torch.arange(self.num_rows, device=lengths.device)
        self._masks = {}

    def mask(self, window, dtype):
        """The addends of the scores, [n, 1, 1, columns]."""
        if (window, dtype) not in self._masks:
            columns = torch.arange(self.num_columns, device=self.lengths.device)
            ends = self.lengths[:, None]
            is_seen = columns <= ends
            if window is not None:
                # A window of w tokens is the token itself and w - 1 before it.
                is_seen &= columns > ends - window
            mask = torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device)
            self._masks[window, dtype] = mask.masked_fill_(~is_seen, float("-inf"))[:, None, None]
        return self._masks[window, dtype]


def attend_cached(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    """Query [n, H, 1, D] over keys and values [n, K, columns, D] of rows, to [n, 1, H, D]."""
    step = more.get("cu_seq_lens_k")
    if attention_mask is not None or dropout or not isinstance(step, _Step):
        raise CacheRefused(f"{CACHED} attends one token of each row to the row, without mask and dropout")
    for argument, given in more.items():
        if argument not in _HARMLESS and given is not None and given is not False:
            raise CacheRefused(f"{CACHED} does not compute `{argument}`")
    num_rows, num_heads, _, width = query.shape
    # Heads that share a key take the dimension of tokens, so nothing is repeated for them.
    grouped = query.reshape(num_rows, key.shape[1], num_heads // key.shape[1], width)
    mask, cap = step.mask(more.get("sliding_window"), query.dtype), more.get("softcap")
    if cap is None:
        attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = (grouped @ key.transpose(2, 3)) * (width**-0.5 if scaling is None else scaling)
        scores = (scores / cap).tanh() * cap + mask
        attended = scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return attended.reshape(num_rows, num_heads, 1, -1).transpose(1, 2), None


# The mask interface does not know this name, so it makes no mask for it.
AttentionInterface.register(CACHED, attend_cached)
