"""A wave as one row of tokens without padding.

    prompt a | completion 1 | prompt a | completion 2 | prompt b | completion 3
    0 1 2 .. |              | 0 1 2 .. |              | 0 1 ..   |               position_ids

Each sequence is its prompt and its completion but for the last token, which predicts nothing that is asked
for. Position ids begin anew with each sequence; attention keeps to a sequence (see `attention`).
"""

from dataclasses import dataclass

import torch


@dataclass
class Pack:
    """Sequences in one row of M tokens, of which N predict a completion's token.

    input_ids, position_ids: i64 [1, M]
    offsets:  i32 [S+1], begin of each sequence in the row
    lengths:  the S differences of the offsets, as numbers
    rows:     i64 [N], position in the row that predicts each completion token
    targets:  i64 [N], the completions' tokens, in the order of the wave
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    offsets: torch.Tensor
    lengths: list
    rows: torch.Tensor
    targets: torch.Tensor


def pack(wave, device):
    """The whole wave as one pack; at least one sequence."""
    return _pack(wave, 0, wave.num_sequences, device)


def pack_one_by_one(wave, device):
    """A pack for each sequence, for decoders in which packed sequences are not independent."""
    return [_pack(wave, s, s + 1, device) for s in range(wave.num_sequences)]


def _pack(wave, first, end, device):
    prompt_offset, completion_offset = wave.prompt_offset.tolist(), wave.completion_offset.tolist()
    prompt_of = wave.prompt_of.tolist()
    tokens, positions, rows, lengths, offset = [], [], [], [], 0
    for s in range(first, end):
        prompt = wave.prompt_token[prompt_offset[prompt_of[s]] : prompt_offset[prompt_of[s] + 1]]
        completion = wave.completion_token[completion_offset[s] : completion_offset[s + 1]]
        length = prompt.numel() + completion.numel() - 1
        tokens += [prompt, completion[:-1]]
        positions.append(torch.arange(length))
        rows.append(torch.arange(offset + prompt.numel() - 1, offset + length))
        lengths.append(length)
        offset += length
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    targets = wave.completion_token[completion_offset[first] : completion_offset[end]]
    return Pack(
        input_ids=torch.cat(tokens).long().unsqueeze(0).to(device),
        position_ids=torch.cat(positions).unsqueeze(0).to(device),
        offsets=torch.tensor(begins, dtype=torch.int32).to(device),
        lengths=lengths,
        rows=torch.cat(rows).to(device),
        targets=targets.long().to(device),
    )
