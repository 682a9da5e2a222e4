"""Passes whose numbers do not depend on how many tokens are computed together (`learner.exact`).

A matrix product of another number of rows may use another kernel, which sums in another order. The first elements of a
vector operation may be computed by other instructions than its last ones. So a token's log-probability differs a little
between sampling, which computes one token of each sequence, and training, which computes whole sequences.

Here the decoder always computes a tile of the same number of rows, whatever the rows are:

    training, prompts    prompt a, completion 1 | prompt a, comple | tion 2, prompt b, completion 3, idle ..
    sampling             a token of sample 1, of sample 2, of sample 3, idle ..

    tile [1, rows] -> embedding, norms, products, activations: always of one shape
                   -> attention: each row over its own keys, from position 0 (below)
                   -> head: logits [rows, V] and their log-softmax, always of one shape

Every operation thus has one shape in all passes. An operation of one shape gives a row the same bits wherever the row is
in the tile and whatever the others are; `check` tests this on the loaded model. Tiles of a pass are computed in the
order of the row, each through all layers, because its attention needs the keys of those before it.

Attention: queries are taken in units of `_QUERIES` rows of one sequence. A unit's keys are gathered in the order of
their positions, in blocks of `_BLOCK` from position 0:

    s_j = cap(scale q . k_j), minus infinity if j is not seen      w_j = exp(s_j - max_j s_j)
    out = (sum over blocks b, in order, of sum_{j in b} w_j v_j) / (sum over b, in order, of sum_{j in b} w_j)

A block that is not seen adds zeros, so the sums do not depend on how many blocks there are. Products are of one shape
for each unit, head and block. All of it is f32.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from . import attention, rotary
from .packing import Branch, take_rows
from .protocol import Refused

# Rows of a tile. A multiple of the numbers that vector instructions take at a time, so that a row's width, whatever it
# is, leaves no rest of them at a tile's end.
_ROWS = {"cpu": 64, "cuda": 256}
_BLOCK, _QUERIES = 64, 4
# Architectures that the tests show to be exact.
MODEL_TYPES = ("gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3")
_HINT = "set `learner.exact` to false"


def num_rows(device):
    """Rows of a tile on a device."""
    return _ROWS.get(device.type, 64)


def refuse_unknown(network):
    """Refuses networks that are not known to be exact in tiles."""
    name, kind = type(network.decoder).__name__, network.config.model_type
    if network.vision is not None:
        raise Refused(f"`learner.exact` does not compute images, which {name} sees", _HINT)
    if kind not in MODEL_TYPES:
        raise Refused(
            f"`learner.exact` is not tested with {name} (model_type {kind}), only with {', '.join(MODEL_TYPES)}", _HINT
        )
    if rotary.depends_on_length(network.decoder):
        raise Refused(f"`learner.exact` cannot be used with {name}: its rotary positions depend on the length of a row", _HINT)


def check(network, packs):
    """Refuses a network in which the numbers of a sequence depend on its place in a pack.

    packs: pairs of a pack of the sequence by itself, and one with other sequences, with the rows that the sequence has
    there.
    """
    for alone, together, rows in packs:
        truth, found = network.hidden(alone), network.hidden(together)[rows]
        if not torch.equal(truth, found):
            raise Refused(
                f"{type(network.decoder).__name__} is not exact on this machine: numbers depend on a token's place in a tile",
                f"set `learner.threads` to 1, 2, 4 or 8, or {_HINT}",
            )


def hidden(network, pack, states=None):
    """Last hidden states [M, D] of a pack, tile by tile; `states` (`row_cache.PromptStates`) gets each layer's keys and
    values.
    """
    device = pack.input_ids.device
    rows, length = num_rows(device), pack.input_ids.shape[1]
    tokens, positions = (F.pad(one, (0, -length % rows)).split(rows, 1) for one in (pack.input_ids, pack.position_ids))
    branches, kept, found = _branches(pack), {}, []
    for number, (token, position) in enumerate(zip(tokens, positions, strict=True)):
        tile = PackTile(branches, number, rows, kept, device)
        found.append(compute(network, token, position, tile))
    if states is not None:
        for layer, tiles in kept.items():
            pair = (torch.cat([tile[place] for tile in tiles])[:length] for place in (0, 1))
            states.states[layer] = tuple(one.transpose(0, 1)[None] for one in pair)
    return torch.cat(found)[:length]


def compute(network, tokens, positions, tile):
    """Last hidden states [rows, D] of a tile: tokens and positions i64 [1, rows]."""
    output = network.decoder(
        input_ids=tokens, position_ids=positions, use_cache=False, cu_seq_lens_q=tile, cu_seq_lens_k=tile
    )
    return output.last_hidden_state[0]


class PackTile:
    """A tile of a pack's rows, and what they see of it; `branches` are those of the whole pack.

    `kept` has the keys and values of the tiles so far by layer, `[rows, K, D]` each. Autograd goes through them: a
    completion's loss reaches its prompt in an earlier tile.
    """

    def __init__(self, branches, number, num_rows, kept, device):
        self.number, self.kept = number, kept
        first, units = number * num_rows, []
        for branch in branches:
            begin, end = max(branch.begin, first), min(branch.end, first + num_rows)
            for row in range(begin, end, _QUERIES):
                last = min(row + _QUERIES, end)
                seen = torch.cat([torch.arange(*branch.prompt), torch.arange(branch.begin, last)])
                units.append((row - first, last - row, seen))
        longest = whole_blocks(max(len(seen) for _, _, seen in units))
        # Rows of a pack that a unit sees; behind them any row, which the mask hides.
        seen = torch.stack([F.pad(one, (0, longest - len(one))) for _, _, one in units])
        needed, order = (seen // num_rows).unique(return_inverse=True)
        self.needed, self.keys = needed.tolist(), (order * num_rows + seen % num_rows).to(device)
        starts, counts, lengths = (torch.tensor(column) for column in zip(*((s, n, len(one)) for s, n, one in units), strict=True))
        offsets = torch.arange(_QUERIES).minimum(counts[:, None] - 1)
        self.queries = (starts[:, None] + offsets).to(device)
        # The position of a unit's query is that of its last seen row, less its distance from the unit's end.
        self.positions = (lengths[:, None] - counts[:, None] + offsets).to(device)
        # Where each row's result is; idle rows take the zeros behind all of them.
        source = torch.full((num_rows,), len(units) * _QUERIES)
        for unit, (start, count, _) in enumerate(units):
            source[start : start + count] = torch.arange(count) + unit * _QUERIES
        self.source = source.to(device)

    def attend(self, layer, query, key, value, constants):
        """Query [rows, H, D], key and value [rows, K, D] to [rows, H, D]."""
        tiles = self.kept.setdefault(layer, [])
        # A layer that is recomputed for its gradient comes here again, with tiles kept by the first time.
        if len(tiles) == self.number:
            tiles.append((key, value))
        seen = [(key, value) if number == self.number else tiles[number] for number in self.needed]
        keys, values = zip(*seen, strict=True)
        return _AttendPack.apply(self, constants, query, *keys, *values)

    def computed(self, constants, query, *states):
        """The attention over the needed tiles' keys and values."""
        half = len(states) // 2
        keys, values = (
            take_rows(torch.cat(tiles), self.keys.flatten()).unflatten(0, self.keys.shape).transpose(1, 2)
            for tiles in (states[:half], states[half:])
        )
        queries = take_rows(query, self.queries.flatten()).unflatten(0, self.queries.shape)
        attended = attend_units(queries, keys, values, self.positions, *constants).flatten(0, 1)
        return take_rows(F.pad(attended, (0, 0, 0, 0, 0, 1)), self.source)


class _AttendPack(torch.autograd.Function):
    """Attention of a tile, recomputed in the backward pass: gathered keys and weights are not kept."""

    @staticmethod
    def forward(ctx, tile, constants, query, *states):
        ctx.tile, ctx.constants = tile, constants
        ctx.save_for_backward(query, *states)
        return tile.computed(constants, query, *states)

    @staticmethod
    def backward(ctx, gradient):
        parts = [part.detach().requires_grad_() for part in ctx.saved_tensors]
        with torch.enable_grad():
            attended = ctx.tile.computed(ctx.constants, *parts)
        return None, None, *torch.autograd.grad(attended, parts, gradient)


def _branches(pack):
    if pack.layout is not None:
        return pack.layout.branches
    ends = list(accumulate(pack.lengths))
    return [Branch((end - length, end - length), end - length, end) for length, end in zip(pack.lengths, ends, strict=True)]


class CacheTile:
    """A tile of rows of a cache (`row_cache.RowCache`), each with its next token.

    Here a row of the cache begins with its prompt's keys and values, so that blocks are read where they are. first: the
    tile's first row; positions: i64 [count] of the next tokens of the rows that are not idle; longest: no row sees more
    than so many tokens.
    """

    def __init__(self, cache, first, positions, longest):
        self.store, self.rows = cache.rows, slice(first, first + len(positions))
        self.columns, self.queries = positions, positions[:, None].expand(-1, _QUERIES)
        self.places = first + torch.arange(len(positions), device=positions.device)
        self.longest = whole_blocks(longest)

    def attend(self, layer, query, key, value, constants):
        """Stores each row's key and value, and attends: [rows, H, D] to [rows, H, D]."""
        count, seen = len(self.columns), []
        for tensors, states in ((self.store.keys, key), (self.store.values, value)):
            tensors[layer][self.places, :, self.columns] = states[:count]
            seen.append(tensors[layer][self.rows, :, : self.longest])
        queries = query[:count, None].expand(-1, _QUERIES, -1, -1)
        attended = attend_units(queries, *seen, self.queries, *constants)[:, 0]
        return F.pad(attended, (0, 0, 0, 0, 0, len(query) - count))


def whole_blocks(length):
    """The columns of a row of the cache for so many tokens."""
    return -(-length // _BLOCK) * _BLOCK


def attend_units(query, key, value, positions, scale, window, cap):
    """Query [U, Q, H, D] at positions [U, Q] over keys and values [U, K, L, D] from position 0, to [U, Q, H, D].

    L is a multiple of the block.
    """
    num_units, num_queries, num_heads, width = query.shape
    num_kept, longest = key.shape[1:3]
    grouped, blocks = num_heads // num_kept, longest // _BLOCK
    query = query.float().unflatten(2, (num_kept, grouped)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    query = query.flatten(0, 1)
    key, value = (one.flatten(0, 1).float().split(_BLOCK, 1) for one in (key, value))
    scores = torch.stack([torch.bmm(query, one.transpose(1, 2)) for one in key], 1)
    scores = scores * scale if cap is None else torch.tanh(scores * (scale / cap)) * cap
    scores = scores.view(num_units, num_kept, blocks, grouped, num_queries, _BLOCK)
    place = torch.arange(longest, device=query.device)
    hidden = place > positions[:, :, None]
    if window is not None:
        # A window of w tokens is the token itself and w - 1 before it.
        hidden |= place <= positions[:, :, None] - window
    hidden = hidden.unflatten(2, (blocks, _BLOCK)).transpose(1, 2)[:, None, :, None]
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = (scores - scores.detach().amax((2, 5), keepdim=True)).exp()
    parts = weights.flatten(0, 1).flatten(2, 3).unbind(1)
    totals = weights.sum(5).flatten(0, 1).flatten(2, 3).unbind(1)
    attended, total = torch.bmm(parts[0], value[0]), totals[0]
    for part, one, more in zip(parts[1:], value[1:], totals[1:], strict=True):
        attended, total = attended + torch.bmm(part, one), total + more
    attended = (attended / total[..., None]).view(num_units, num_kept, grouped, num_queries, width)
    return attended.permute(0, 3, 1, 2, 4).flatten(2, 3)


def attend_exact(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **more):
    """Query [1, H, rows, D], key and value [1, K, rows, D] to [1, rows, H, D]."""
    attention.check(attention.EXACT, query, key, attention_mask, dropout, more)
    tile = more["cu_seq_lens_q"]
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    states = (one[0].transpose(0, 1) for one in (query, key, value))
    attended = tile.attend(module.layer_idx, *states, (scaling, more.get("sliding_window"), softcap))
    return attended.to(query.dtype)[None], None


# The mask interface does not know this name, so it makes no mask for it.
AttentionInterface.register(attention.EXACT, attend_exact)
