"""A wave as one row of tokens without padding.

Sequences follow their prompt, which is in the row once (`shares`, if the decoder's attention can):

    prompt a | completion 1 | completion 2 | prompt b, completion 3
    0 1 2    | 3 4 5        | 3 4          | 0 1 2 3 4               position_ids

A completion sees its prompt and itself. Otherwise each sequence has a prompt of its own:

    prompt a, completion 1 | prompt a, completion 2 | prompt b, completion 3
    0 1 2 3 4 5            | 0 1 2 3 4              | 0 1 2 3 4

The last token of a completion is left out, because its prediction is not needed. Attention stays within a sequence (see
`attention`).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import torch


@dataclass(frozen=True)
class Branch:
    """Neighbouring rows, `begin` to `end`, that see their prompt's rows and then their own."""

    prompt: tuple
    begin: int
    end: int


# Key rows gathered at once, as a multiple of the pack's rows: 64 completions of a long prompt see it 64 times.
_GATHERED = 4
# Gradient rows converted to f32 at once.
_ADDED = 1 << 15


class Layout:
    """What the pieces of a row see before themselves, if some share a prompt: `branches`, in the row's order."""

    def __init__(self, branches, device):
        self.branches = branches
        self._device = device

    @property
    def rows(self):
        """The rows of the branches, which are neighbours, as a slice."""
        return slice(self.branches[0].begin, self.branches[-1].end)

    @cached_property
    def blocks(self):
        """Layouts of a few neighbouring branches at a time, which together see a small multiple of the pack's rows.

        A branch that sees more than that is a block of its own.
        """
        limit = _GATHERED * (self.rows.stop - self.rows.start)
        blocks, num_seen = [[]], 0
        for branch in self.branches:
            more = _num_seen(branch)
            if blocks[-1] and num_seen + more > limit:
                blocks.append([])
                num_seen = 0
            blocks[-1].append(branch)
            num_seen += more
        return [self] if len(blocks) == 1 else [Layout(branches, self._device) for branches in blocks]

    def _offsets(self, lengths):
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self._device)

    @cached_property
    def query_offsets(self):
        """i32 [B+1], begin of each branch in the row."""
        return self._offsets([branch.end - branch.begin for branch in self.branches])

    @cached_property
    def key_offsets(self):
        """i32 [B+1], begin of what each branch sees in `key_rows`."""
        return self._offsets([_num_seen(branch) for branch in self.branches])

    @cached_property
    def key_rows(self):
        """i64, the rows that each branch sees, one branch after the other."""
        seen = [torch.arange(*part) for branch in self.branches for part in _seen(branch)]
        return torch.cat(seen).to(self._device)

    @cached_property
    def longest_query(self):
        """Rows of the longest branch."""
        return max(branch.end - branch.begin for branch in self.branches)

    @cached_property
    def longest_key(self):
        """Most rows that a branch sees."""
        return max(_num_seen(branch) for branch in self.branches)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, rows):
        ctx.save_for_backward(rows)
        ctx.num_rows = states.shape[0]
        return states[rows]

    @staticmethod
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        summed = torch.zeros(ctx.num_rows, *gradient.shape[1:], dtype=torch.float32, device=gradient.device)
        add_rows(summed, rows, gradient)
        return summed.to(gradient.dtype), None


def take_rows(states, rows):
    """Rows of states [M, ...], some of them repeated: their gradients are summed in f32, whatever the type."""
    return _TakeRows.apply(states, rows)


def add_rows(summed, rows, gradient):
    """Adds gradients [R, ...] of taken rows to f32 [M, ...], a part at a time."""
    for begin in range(0, rows.shape[0], _ADDED):
        part = slice(begin, begin + _ADDED)
        summed.index_add_(0, rows[part], gradient[part].float())


def _seen(branch):
    return [branch.prompt, (branch.begin, branch.end)]


def _num_seen(branch):
    return sum(end - begin for begin, end in _seen(branch))


@dataclass
class Pack:
    """Sequences in one row of M tokens, of which N predict a completion's token.

        input_ids, position_ids: i64 [1, M]
        offsets:  i32 [B+1], begin of each piece in the row: a sequence, a shared prompt, a branch behind it
        lengths:  the B differences of the offsets, as numbers
        rows:     i64 [N], position in the row that predicts each completion token
        targets:  i64 [N], the completions' tokens, in the order of the wave
        candidates: i64 [N, k], other tokens at their places, or `None`
        layout:   of a row in which sequences share prompts, otherwise `None`
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    offsets: torch.Tensor
    lengths: list
    rows: torch.Tensor
    targets: torch.Tensor
    layout: Layout | None = None
    candidates: torch.Tensor | None = None


def pack(wave, device, shares=False):
    """The whole wave as one pack; at least one sequence."""
    return _pack(wave, 0, wave.num_sequences, device, shares)


def pack_one_by_one(wave, device):
    """A pack for each sequence, for decoders whose packed sequences influence each other."""
    return [_pack(wave, s, s + 1, device, False) for s in range(wave.num_sequences)]


def _pack(wave, first, end, device, shares):
    prompts, completions = wave.prompt_offset.tolist(), wave.completion_offset.tolist()
    prompt_of = wave.prompt_of.tolist()
    row = _Row()
    # Sequences of a prompt are neighbours.
    for place, members in groupby(range(first, end), lambda s: prompt_of[s] if shares else s):
        members = list(members)
        at = place if shares else prompt_of[place]
        prompt = wave.prompt_token[prompts[at] : prompts[at + 1]]
        row.add(prompt, [wave.completion_token[completions[s] : completions[s + 1]] for s in members])
    own = slice(completions[first], completions[end])
    packed = row.pack(wave.completion_token[own].long(), device)
    if wave.candidates is not None:
        packed.candidates = wave.candidates[own].long().to(device)
    return packed


class _Row:
    """A row under construction."""

    def __init__(self):
        self.tokens, self.positions, self.rows, self.branches = [], [], [], []
        self.length, self.is_shared = 0, False

    def _append(self, tokens, position, prompt):
        begin, self.length = self.length, self.length + tokens.numel()
        self.tokens.append(tokens)
        self.positions.append(torch.arange(position, position + tokens.numel()))
        self.branches.append(Branch(prompt or (begin, begin), begin, self.length))
        return begin

    def add(self, prompt, completions):
        """Adds a prompt with all of its completions."""
        P = prompt.numel()
        if len(completions) == 1:
            begin = self._append(torch.cat([prompt, completions[0][:-1]]), 0, None)
            self.rows.append(torch.arange(begin + P - 1, self.length))
            return
        self.is_shared = True
        begin = self._append(prompt, 0, None)
        for completion in completions:
            # Its first token is predicted by the prompt's last.
            self.rows.append(torch.tensor([begin + P - 1]))
            if completion.numel() > 1:
                own = self._append(completion[:-1], P, (begin, begin + P))
                self.rows.append(torch.arange(own, self.length))

    def pack(self, targets, device):
        """The finished row."""
        lengths = [branch.end - branch.begin for branch in self.branches]
        return Pack(
            input_ids=torch.cat(self.tokens).long().unsqueeze(0).to(device),
            position_ids=torch.cat(self.positions).unsqueeze(0).to(device),
            offsets=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device),
            lengths=lengths,
            rows=torch.cat(self.rows).to(device),
            targets=targets.to(device),
            layout=Layout(self.branches, device) if self.is_shared else None,
        )
