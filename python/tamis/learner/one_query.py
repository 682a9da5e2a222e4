"""Attention of one token of each row to its prompt and to its own tokens, over preallocated keys and values.

    row r sees   prompt columns j < L_r,   own columns c <= l_r      (its own token is at column l_r)
                 with a window w: the last w of them, its own token included
    out_r = sum_i softmax_i(cap(scale q_r . k_i)) v_i                over both parts together

The parts are computed apart, and joined by their largest scores and the sums of their weights, as flash-attention joins
blocks (Dao et al. 2022, section 3.1; "cascade" attention if many rows share a prefix). On a GPU a Triton kernel reads
both parts row by row, and only as far as the row reaches (`one_query_kernel`). Elsewhere a product for each prompt has
the queries of all its rows, so that the prompt is read once and not once for each member of the group.
"""

import functools
import importlib.util

import torch

# A score that no softmax sees: minus infinity would give NaN for a row without a visible column.
_UNSEEN = -1e30


class Groups:
    """The rows of each prompt's slot, as two maps on a device: `rows` i64 [S, m] has a slot's rows, filled up with
    others of them, and `places` i64 [n] has each row's place in it, flat.

    slots: the slot of each row.
    """

    def __init__(self, slots, device):
        members = {}
        for row, slot in enumerate(slots):
            members.setdefault(slot, []).append(row)
        most = max(map(len, members.values()))
        self.num_slots = max(slots) + 1
        rows = [[members.get(slot, [0])[0]] * most for slot in range(self.num_slots)]
        places = [0] * len(slots)
        for slot, own in members.items():
            rows[slot][: len(own)] = own
            for at, row in enumerate(own):
                places[row] = slot * most + at
        self.rows, self.places = torch.tensor(rows).to(device), torch.tensor(places).to(device)
        self.slots = torch.tensor(slots).to(device)

    def gather(self, states):
        """[n, K, G, D] by slot, [S, K, m G, D]."""
        kept = states[self.rows].transpose(1, 2)
        return kept.reshape(self.num_slots, states.shape[1], -1, states.shape[3])

    def scatter(self, states, num_grouped):
        """[S, K, m G, D] by row, [n, K, G, D]."""
        kept = states.unflatten(2, (-1, num_grouped)).transpose(1, 2).flatten(0, 1)
        return kept[self.places]


class Seen:
    """What the rows of a step see: their lengths, their prompts, and masks by window."""

    def __init__(self, lengths, prompt_lengths, groups, num_columns, prompts):
        self.lengths, self.prompt_lengths, self.groups = lengths, prompt_lengths, groups
        self.num_columns, self.num_rows, self.prompts = num_columns, lengths.shape[0], prompts
        self._masks, self._places = {}, None

    def places(self, tensor):
        """Where a row's next token is in `[rows heads columns, width]`, i64 [n heads]; of one shape in every layer."""
        heads, columns = tensor.shape[1:3]
        if self._places is None or self._places[0] != (heads, columns):
            at = torch.arange(self.num_rows * heads, device=self.lengths.device) * columns
            self._places = (heads, columns), at + self.lengths.repeat_interleave(heads)
        return self._places[1]

    def masks(self, window, num_grouped):
        """Addends of the scores, f32: by slot over the prompts [S, 1, 1 or m G, L], and of rows over their own tokens
        [n, 1, 1, columns]. G heads share a key.
        """
        if window not in self._masks:
            device = self.lengths.device
            of_prompt = torch.arange(self.prompts.num_columns, device=device)
            own = torch.arange(self.num_columns, device=device)
            # Without a window all rows of a slot see the same.
            rows = self.groups.rows[:, :1] if window is None else self.groups.rows
            sees_prompt, sees_own = of_prompt < self.prompt_lengths[rows][..., None], own <= self.lengths[:, None]
            if window is not None:
                # A window of w tokens is the token itself and w - 1 before it.
                sees_prompt &= of_prompt > (self.prompt_lengths + self.lengths)[rows][..., None] - window
                sees_own &= own > self.lengths[:, None] - window
                sees_prompt = sees_prompt.repeat_interleave(num_grouped, 1)
            masks = (torch.zeros(sees.shape, device=device).masked_fill_(~sees, _UNSEEN) for sees in (sees_prompt, sees_own))
            prompt, own = masks
            self._masks[window] = prompt[:, None], own[:, None, None]
        return self._masks[window]


def attend_rows(query, key, value, seen, layer, scale, window=None, cap=None):
    """Query [n, H, D] over a layer's prompts, and over keys and values [n, K, columns, D], to [n, H, D]."""
    num_heads, num_kept = query.shape[1], key.shape[1]
    kernel = _kernel(query.device.type)
    prompt_key, prompt_value = seen.prompts.keys[layer], seen.prompts.values[layer]
    if kernel is not None:
        return kernel(
            query, prompt_key, prompt_value, seen.groups.slots, seen.prompt_lengths, key, value, seen.lengths, scale, window, cap
        )
    # Heads that share a key take the dimension of tokens, so nothing is repeated for them.
    num_grouped = num_heads // num_kept
    grouped = query.reshape(len(query), num_kept, num_grouped, -1)
    groups = seen.groups
    prompt_key, prompt_value = prompt_key[: groups.num_slots], prompt_value[: groups.num_slots]
    of_prompt, own = seen.masks(window, num_grouped)
    by_slot = _part(groups.gather(grouped), prompt_key, prompt_value, of_prompt, scale, cap)
    top, total, summed = (groups.scatter(one, num_grouped) for one in by_slot)
    own_top, own_total, own_summed = _part(grouped, key, value, own, scale, cap)
    # exp(-|d|) of the part with the smaller score, 1 of the other.
    largest = torch.maximum(top, own_top)
    weight, own_weight = top.sub_(largest).exp_(), own_top.sub_(largest).exp_()
    attended = summed.mul_(weight).addcmul_(own_summed, own_weight)
    attended /= total.mul_(weight).addcmul_(own_total, own_weight)
    return attended.to(query.dtype).reshape(query.shape)


def _part(query, key, value, mask, scale, cap):
    """Largest score, sum of weights and weighted sum of values of some columns, f32 [.., 1], [.., 1] and [.., D]."""
    scores = _product(query, key.transpose(2, 3))
    if cap is not None:
        scores = scores.mul_(scale / cap).tanh_().mul_(cap).add_(mask)
    else:
        scores = torch.add(mask, scores, alpha=scale, out=scores)
    top = scores.amax(3, keepdim=True)
    weights = scores.sub_(top).exp_()
    return top, weights.sum(3, keepdim=True), _product(weights.to(value.dtype), value)


def _product(left, right):
    """Batched `left @ right` in f32, whatever type the factors are of."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out_dtype=torch.float32)
        return product.unflatten(0, left.shape[:2])
    return left.float() @ right.float()


def has_kernel():
    """Whether there is a kernel for a GPU: it needs Triton."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernel(device_type):
    """The kernel for a device, or `None`."""
    if device_type != "cuda" or not has_kernel():
        return None
    from .one_query_kernel import attend

    return attend
