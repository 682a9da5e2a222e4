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
there; of `adamw` that of the change. `milliseconds` is the median of `--repetitions`.
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
        given = [one.to(where, kind).requires_grad_() for one in states]
        found = form(given)
        return [found.detach(), *torch.autograd.grad(found, given, upward.to(where, kind))]

    exact = gradients(by_sequence, "cpu", torch.float64)
    for form_name, form in ((name, learner), ("sdpa", by_sequence)):
        yield form_name, lambda form=form: gradients(form, device, dtype), exact


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
        yield form_name, form, exact


def head_forms(size, device, dtype, generator):
    hidden = drawn(size["tokens"], HIDDEN, generator=generator)
    weight = drawn(size["vocabulary"], HIDDEN, generator=generator, deviation=0.05)
    targets = torch.randint(size["vocabulary"], (size["tokens"],), generator=generator)

    def by_chunks(given, where):
        chunk = chunk_tokens(torch.device(where), size["vocabulary"])
        return logprob_and_entropy(*given, None, targets.to(where), chunk=chunk)

    def whole(given, where):
        log_p = (given[0] @ given[1].t()).to(torch.float64 if given[0].dtype == torch.float64 else torch.float32).log_softmax(1)
        return log_p.gather(1, targets.to(where)[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)

    def gradients(form, where, kind):
        given = [one.to(where, dtype).to(kind).requires_grad_() for one in (hidden, weight)]
        logprob, entropy = form(given, where)
        return [logprob.detach(), entropy.detach(), *torch.autograd.grad((logprob + 0.1 * entropy).sum(), given)]

    # The exact one of a large vocabulary does not fit everywhere: of some of the tokens, if the sizes are whole.
    exact = gradients(whole, "cpu", torch.float64) if size["tokens"] * size["vocabulary"] < 1e8 else None
    for form_name, form in (("chunks", by_chunks), ("whole logits", whole)):
        yield form_name, lambda form=form: gradients(form, device, dtype), exact


def adamw_forms(size, device, dtype, generator):
    begun = drawn(size["weights"], generator=generator)
    gradient = drawn(size["weights"], generator=generator)
    constants = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}

    def learner():
        parameter = torch.nn.Parameter(begun.to(device, copy=True))
        weights = TrainedWeights({"one": parameter})
        own = AdamW(weights, AdamWSettings(**constants, decay_norms_and_biases=True, max_grad_norm=None))

        def step():
            parameter.grad = gradient.to(device, copy=True)
            own.step(1e-3)
            return [parameter.detach().cpu().double() - begun.double()]

        return step

    def theirs(kind=torch.float32, where=device):
        parameter = torch.nn.Parameter(begun.to(where, kind, copy=True))
        own = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)

        def step():
            parameter.grad = gradient.to(where, kind, copy=True)
            own.step()
            return [parameter.detach().cpu().double() - begun.double()]

        return step

    exact = theirs(torch.float64, "cpu")()
    for form_name, make in (("learner", learner), ("torch.optim", theirs)):
        yield form_name, make(), exact


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
    for name in arguments.only:
        for form, run, exact in KERNELS[name](size, device, dtype, torch.Generator().manual_seed(1)):
            found = run()
            line = {"kernel": name, "form": form, "dtype": str(dtype).removeprefix("torch.")}
            line["error"] = None if exact is None else max(map(error, found, exact))
            line["milliseconds"] = milliseconds(run, device, arguments.repetitions)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
