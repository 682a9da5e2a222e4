"""What the torch learner computes with, piece by piece: error against 64 bits, and time, beside what PyTorch has for it.

    scripts/install-torch
    .venv-torch/bin/python bench/torch_kernels.py --small                  CPU, small sizes, some seconds
    python bench/torch_kernels.py --device cuda                            a GPU, in bf16

    attention   a training pass over packed sequences: the learner's choice, and `sdpa` over each sequence
    one_query   a token of each row over a prompt that eight rows share, and its own tokens: the learner's way (on a GPU
                its Triton kernel), its way without the kernel, and `sdpa` over rows that each hold their prompt
    head        log-probabilities and entropies from hidden states, with their gradients: in chunks, and with whole logits
    adamw       a step of the learner's optimizer, and of `torch.optim.AdamW`

One JSON line for each form. `error` is the largest difference from the same in 64 bits, as a part of the largest number
there: of all outputs and gradients, of `head` for some of the tokens, of `adamw` of the first change. `milliseconds` is the
median of `--repetitions`; what goes in is on the device before. If an error of the learner is beyond `MOST_ERROR`, its line
has `beyond`, and the exit status is 1.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import unittest.mock

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from tamis.learner import attention, one_query
from tamis.learner.logprob import chunk_tokens, logprob_and_entropy
from tamis.learner.optimizer import AdamW, AdamWSettings
from tamis.learner.weights import TrainedWeights

SIZES = {
    "small": {"lengths": (70, 5, 130, 31), "rows": 16, "prompt": 96, "own": 64, "tokens": 200, "vocabulary": 2000, "weights": 200_000},
    "whole": {"lengths": (1024,) * 12 + (512,) * 8, "rows": 256, "prompt": 512, "own": 512, "tokens": 4096, "vocabulary": 151_936, "weights": 100_000_000},
}  # fmt: skip
# Several times what was seen on a CPU in f32 and in bf16. A wrong kernel is off by far more.
MOST_ERROR = {torch.float32: 3e-5, torch.bfloat16: 4e-2}
# Tokens whose error is measured, and weights.
FEW_TOKENS, FEW_WEIGHTS = 256, 1_000_000
# Forms that are not the learner's: they are beside it.
PEERS = ("sdpa", "sdpa, prompts apart", "whole logits", "torch.optim")
# Of a 0.5B model: heads, heads of keys, width of a head, hidden size.
HEADS, KEPT, WIDTH, HIDDEN = 14, 2, 64, 896


def drawn(*shape, generator, deviation=1.0):
    return torch.randn(shape, generator=generator) * deviation


def error(found, exact):
    exact = exact.double().cpu()
    return float(f"{float((found.double().cpu() - exact).abs().max() / exact.abs().max()):.2g}")


def milliseconds(run, device, repetitions):
    taken = []
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - begin))
    # The first one compiles and allocates.
    return round(statistics.median(taken[1:]), 3)


def attention_forms(size, device, dtype, generator):
    lengths = size["lengths"]
    states = [drawn(1, heads, sum(lengths), WIDTH, generator=generator) for heads in (HEADS, KEPT, KEPT)]
    upward = drawn(1, sum(lengths), HEADS, WIDTH, generator=generator)
    name = attention.VARLEN if device.type == "cuda" and dtype != torch.float32 else attention.SEQUENCES
    attend = {attention.VARLEN: attention.attend_varlen, attention.SEQUENCES: attention.attend_sequences}[name]
    ends = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    ways = {name: {"cu_seq_lens_q": list(lengths) if name == attention.SEQUENCES else ends, "max_length_q": max(lengths)}}

    def learner(given):
        return attend(None, *given, None, scaling=WIDTH**-0.5, **ways[name])[0]

    def by_sequence(given):
        parts = zip(*(one.split(lengths, 2) for one in given), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True).transpose(1, 2) for part in parts], 1)

    def gradients(form, where, kind):
        given, above = [one.to(where, kind).requires_grad_() for one in states], upward.to(where, kind)

        def run():
            found = form(given)
            return [found.detach(), *torch.autograd.grad(found, given, above)]

        return run

    exact = gradients(by_sequence, "cpu", torch.float64)()
    for form_name, form in ((name, learner), ("sdpa", by_sequence)):
        run = gradients(form, device, dtype)
        yield form_name, run, run(), exact


def one_query_forms(size, device, dtype, generator):
    rows, prompt, own = size["rows"], size["prompt"], size["own"]
    slots = [row // 8 for row in range(rows)]
    query = drawn(rows, HEADS, WIDTH, generator=generator).to(device, dtype)
    prompts = [drawn(slots[-1] + 1, KEPT, prompt, WIDTH, generator=generator).to(device, dtype) for _ in range(2)]
    states = [drawn(rows, KEPT, own, WIDTH, generator=generator).to(device, dtype) for _ in range(2)]
    store = unittest.mock.Mock(keys={0: prompts[0]}, values={0: prompts[1]}, num_columns=prompt)
    lengths, prompt_lengths = (torch.full((rows,), length, device=device) for length in (own - 1, prompt))
    groups = one_query.Groups(slots, device)
    whole = [torch.cat([one[groups.slots], state], 2) for one, state in zip(prompts, states, strict=True)]

    def learner():
        seen = one_query.Seen(lengths, prompt_lengths, groups, own, store)
        return [one_query.attend_rows(query, *states, seen, 0, WIDTH**-0.5)]

    def joined():
        with unittest.mock.patch.object(one_query, "_kernel", lambda _: None):
            return learner()

    def apart(query=query, whole=whole):
        grouped = query.unflatten(1, (KEPT, -1))
        return [F.scaled_dot_product_attention(grouped, *whole).flatten(1, 2)]

    exact = apart(query.double().cpu(), [one.double().cpu() for one in whole])
    has_kernel = device.type == "cuda" and one_query.has_kernel()
    for form_name, form in (("kernel", learner),) * has_kernel + (("joined parts", joined), ("sdpa, prompts apart", apart)):
        yield form_name, form, form(), exact


def head_forms(size, device, dtype, generator):
    hidden = drawn(size["tokens"], HIDDEN, generator=generator)
    weight = drawn(size["vocabulary"], HIDDEN, generator=generator, deviation=0.05)
    targets = torch.randint(size["vocabulary"], (size["tokens"],), generator=generator)

    def by_chunks(given, targets):
        chunk = chunk_tokens(given[0].device, size["vocabulary"])
        return logprob_and_entropy(*given, None, targets, chunk=chunk)

    def whole(given, targets):
        log_p = (given[0] @ given[1].t()).to(torch.promote_types(given[0].dtype, torch.float32)).log_softmax(1)
        return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)

    def gradients(form, where, kind, tokens):
        given = [one.to(where, dtype).to(kind).requires_grad_() for one in (hidden[:tokens], weight)]
        wanted = targets[:tokens].to(where)

        def run():
            logprob, entropy = form(given, wanted)
            return [logprob.detach(), entropy.detach(), *torch.autograd.grad((logprob + 0.1 * entropy).sum(), given)]

        return run

    # In 64 bits all logits would not fit everywhere.
    exact = gradients(whole, "cpu", torch.float64, FEW_TOKENS)()
    for form_name, form in (("chunks", by_chunks), ("whole logits", whole)):
        yield form_name, gradients(form, device, dtype, size["tokens"]), gradients(form, device, dtype, FEW_TOKENS)(), exact


def adamw_forms(size, device, dtype, generator):
    begun = drawn(size["weights"], generator=generator, deviation=0.02)
    gradient = drawn(size["weights"], generator=generator)
    constants = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}

    def learner(kind, where):
        parameter = torch.nn.Parameter(begun.to(where, kind, copy=True))
        weights = TrainedWeights({"one": parameter})
        own = AdamW(weights, AdamWSettings(**constants, decay_norms_and_biases=True, max_grad_norm=None))
        return parameter, lambda: own.step(1e-3)

    def theirs(kind, where):
        parameter = torch.nn.Parameter(begun.to(where, kind, copy=True))
        own = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        return parameter, own.step

    def steps(make, kind, where):
        """A step, and what the first one changed."""
        parameter, step = make(kind, where)
        slopes = gradient.to(where, kind)

        def run():
            # The learner's step overwrites it.
            parameter.grad = slopes.clone()
            step()

        run()
        changed = parameter.detach()[:FEW_WEIGHTS].cpu().double() - begun[:FEW_WEIGHTS].double()
        return run, [changed]

    _, exact = steps(theirs, torch.float64, "cpu")
    for form_name, make in (("learner", learner), ("torch.optim", theirs)):
        yield form_name, *steps(make, torch.float32, device), exact


KERNELS = {"attention": attention_forms, "one_query": one_query_forms, "head": head_forms, "adamw": adamw_forms}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--only", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = SIZES["small" if arguments.small else "whole"]
    is_beyond = False
    for name in arguments.only:
        for form, run, found, exact in KERNELS[name](size, device, dtype, torch.Generator().manual_seed(1)):
            # The optimizer's weights and moments are f32.
            kind = torch.float32 if name == "adamw" else dtype
            line = {"kernel": name, "form": form, "dtype": str(kind).removeprefix("torch."), "error": max(map(error, found, exact))}
            line["milliseconds"] = milliseconds(run, device, arguments.repetitions)
            if form not in PEERS and not line["error"] <= MOST_ERROR[kind]:
                is_beyond = line["beyond"] = True
            print(json.dumps(line), flush=True)
    return int(is_beyond)


if __name__ == "__main__":
    sys.exit(main())
