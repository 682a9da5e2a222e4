"""Attention of one token of each row as a Triton kernel (see `one_query`): a program for each row and each head of keys.

It reads a row's prompt and its own tokens block by block, only as far as they reach, and keeps the largest score, the
sum of weights and the weighted sum of values in f32 (online softmax: Milakov and Gimelshein 2018). The rows of a prompt
read the same keys, which the GPU's cache then has.
"""

import torch
import triton
import triton.language as tl

# Columns of keys and values at once.
_BLOCK = 64
# Minus infinity would give NaN for a block in which a row sees nothing. Whatever such a block adds is multiplied by
# exp(-1e30) = 0 as soon as a column is seen, and the own token always is.
UNSEEN = tl.constexpr(-1e30)


@triton.jit
def _see(
    query, top, total, summed, keys, values, row_stride, first, end, scale, cap,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, HAS_CAP: tl.constexpr, AS_F32: tl.constexpr,
):  # fmt: skip
    """Adds the columns from `first` to `end` of one head's keys and values to what was summed before."""
    numbers = tl.arange(0, PADDED)
    for begin in range(first // BLOCK * BLOCK, end, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        is_seen = (columns >= first) & (columns < end)
        places = columns[:, None] * row_stride + numbers[None, :]
        is_there = is_seen[:, None] & (numbers < WIDTH)[None, :]
        key = tl.load(keys + places, mask=is_there, other=0.0)
        key = key.to(tl.float32) if AS_F32 else key
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if HAS_CAP:
            # tanh(x), which needs no library.
            scores = cap * (2.0 / (1.0 + tl.exp(-2.0 * scores / cap)) - 1.0)
        scores = tl.where(is_seen[None, :], scores, UNSEEN)
        largest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - largest[:, None])
        shrunk = tl.exp(top - largest)
        value = tl.load(values + places, mask=is_there, other=0.0)
        value = value.to(tl.float32) if AS_F32 else value
        total = total * shrunk + tl.sum(weights, 1)
        product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        summed = summed * shrunk[:, None] + product
        top = largest
    return top, total, summed


@triton.jit
def _attend(
    query, prompt_key, prompt_value, slots, prompt_lengths, key, value, lengths, out,
    query_row, query_head, slot_stride, prompt_head, key_row, key_head, out_row, out_head, scale, cap, window,
    GROUPED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr, AS_F32: tl.constexpr,
):  # fmt: skip
    """A row's heads that share one head of keys."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    # A product of fewer than 16 rows is padded.
    heads, numbers = tl.arange(0, HEADS), tl.arange(0, PADDED)
    is_there = (heads < GROUPED)[:, None] & (numbers < WIDTH)[None, :]
    of_heads = (head * GROUPED + heads)[:, None]
    states = tl.load(query + row * query_row + of_heads * query_head + numbers[None, :], mask=is_there, other=0.0)
    states = states.to(tl.float32) if AS_F32 else states
    prompt_length, length = tl.load(prompt_lengths + row), tl.load(lengths + row)
    first_of_prompt, first = length * 0, length * 0
    if HAS_WINDOW:
        first_of_prompt = tl.maximum(prompt_length + length - window + 1, 0)
        first = tl.maximum(length - window + 1, 0)
    top = tl.full([HEADS], UNSEEN, tl.float32)
    total, summed = tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, PADDED], tl.float32)
    base = tl.load(slots + row) * slot_stride + head * prompt_head
    top, total, summed = _see(
        states, top, total, summed, prompt_key + base, prompt_value + base, WIDTH, first_of_prompt, prompt_length, scale, cap,
        WIDTH, PADDED, BLOCK, HAS_CAP, AS_F32,
    )  # fmt: skip
    base = row * key_row + head * key_head
    top, total, summed = _see(
        states, top, total, summed, key + base, value + base, WIDTH, first, length + 1, scale, cap,
        WIDTH, PADDED, BLOCK, HAS_CAP, AS_F32,
    )  # fmt: skip
    found = (summed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + row * out_row + of_heads * out_head + numbers[None, :], found, mask=is_there)


def attend(query, prompt_key, prompt_value, slots, prompt_lengths, key, value, lengths, scale, window=None, cap=None):
    """Attention of query [n, H, D] over prompts [slots, K, L, D] and own keys and values [n, K, columns, D], [n, H, D].

    slots, prompt_lengths, lengths: i64 [n], a row's slot, the columns of its prompt, and the column of its newest token.
    """
    num_rows, num_heads, width = query.shape
    num_kept = key.shape[1]
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    for one in (prompt_key, prompt_value, key, value):
        assert one.stride()[2:] == (width, 1), one.stride()
    num_grouped = num_heads // num_kept
    _attend[(num_rows, num_kept)](
        query, prompt_key, prompt_value, slots, prompt_lengths, key, value, lengths, out,
        query.stride(0), query.stride(1), prompt_key.stride(0), prompt_key.stride(1), key.stride(0), key.stride(1),
        out.stride(0), out.stride(1), float(scale), float(cap or 1.0), int(window or 0),
        GROUPED=num_grouped, HEADS=max(16, triton.next_power_of_2(num_grouped)), WIDTH=width,
        PADDED=max(16, triton.next_power_of_2(width)), BLOCK=_BLOCK, HAS_CAP=cap is not None, HAS_WINDOW=window is not None,
        # Triton's interpreter multiplies the bits of bf16 as if they were integers.
        AS_F32=not query.is_cuda,
    )  # fmt: skip
    return out
