"""PyTorch eager on the CPU: training and generation speed of the two models of `tamis-model`'s `engine_speed` example.

Prints one JSON line per form measured:

    {"what": "train" | "generate_separate" | "generate_grouped" | "matmul_peak", "model": "small" | "mid", "form": ...,
     "tokens_per_s": median, "tokens_per_s_max": best, "tokens": counted tokens of one repetition, "repetitions": ...,
     "disturbed": how many repetitions other processes disturbed}

Every case is measured in several forms and `run.py` compares tamis with the fastest, so that the peer is PyTorch at its best
in eager mode and not a straw man:

- `lean`: the module written below, with what a careful author of an eager PyTorch engine would do: one product for q, k and v, one
  for gate and up, `F.rms_norm`, a key-value cache allocated once, fused AdamW. `lean-sdpa` attends with
  `F.scaled_dot_product_attention`, `lean-bmm` with two batched products, which on a CPU are quicker for short sequences.
  A group's prompt is prefilled once and its cache repeated.
- `transformers`: `LlamaForCausalLM` with SDPA attention, and its `generate`: what TRL and most users run.

What is counted. Training: every token of the sequences (padding is not counted) per second of forward, backward, gradient-norm
clipping and AdamW step; the loss is `sum_t coef_t * logp_t` through the fused cross-entropy, without entropies. Generation: new tokens per
second, prefill included, sampling at temperature 1 with the log-probability of each sampled token kept, as reinforcement learning needs.
Completions never stop early.

Ragged batches are padded on the right. Causal attention then needs no mask (a real token never sees a pad to its right), which lets
SDPA take its fastest kernel. `/whole` pads the whole batch to its longest; `/sorted8` sorts by length, cuts into 8 micro-batches,
pads each to its own longest and accumulates their gradients.
"""

import argparse
import json

import torch
import torch.nn.functional as F

from quiet import measure, summary

MODELS = {
    "small": dict(hidden=128, layers=4, heads=4, kv_heads=4, intermediate=384, vocab=64),
    "mid": dict(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1408, vocab=8192),
}

# One training batch: this many sequences of `shortest` to `longest` tokens, evenly spread and shuffled.
TRAIN = {
    "small": dict(sequences=256, shortest=32, longest=64),
    "mid": dict(sequences=32, shortest=64, longest=128),
}

# Generation: `samples` completions of `new` tokens for each of `prompts` different prompts of `prompt` tokens.
GENERATE = {
    "generate_separate": {
        "small": dict(prompts=256, samples=1, prompt=32, new=32),
        "mid": dict(prompts=64, samples=1, prompt=32, new=32),
    },
    "generate_grouped": {
        "small": dict(prompts=16, samples=16, prompt=32, new=32),
        "mid": dict(prompts=4, samples=16, prompt=32, new=32),
    },
}


class Layer(torch.nn.Module):
    """One pre-norm block of a Llama decoder, q/k/v and gate/up each as one product."""

    def __init__(self, hidden, heads, kv_heads, intermediate, attend, **_):
        super().__init__()
        self.attend = attend
        self.heads, self.kv_heads, self.head = heads, kv_heads, hidden // heads
        self.q_width, self.kv_width = heads * self.head, kv_heads * self.head
        self.attention_norm = torch.nn.Parameter(torch.ones(hidden))
        self.qkv = torch.nn.Parameter(torch.empty(self.q_width + 2 * self.kv_width, hidden))
        self.out = torch.nn.Parameter(torch.empty(hidden, self.q_width))
        self.mlp_norm = torch.nn.Parameter(torch.ones(hidden))
        self.gate_up = torch.nn.Parameter(torch.empty(2 * intermediate, hidden))
        self.down = torch.nn.Parameter(torch.empty(hidden, intermediate))

    def forward(self, x, cos, sin, cache=None, start=0):
        batch, length, width = x.shape
        normed = F.rms_norm(x, (width,), self.attention_norm, 1e-6)
        q, k, v = F.linear(normed, self.qkv).split([self.q_width, self.kv_width, self.kv_width], -1)
        q = rotate(q.view(batch, length, self.heads, self.head), cos, sin).transpose(1, 2)
        k = rotate(k.view(batch, length, self.kv_heads, self.head), cos, sin).transpose(1, 2)
        v = v.view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        if cache is not None:
            keys, values = cache
            keys[:, :, start : start + length] = k
            values[:, :, start : start + length] = v
            k, v = keys[:, :, : start + length], values[:, :, : start + length]
        attended = self.attend(q, k, v)
        x = x + F.linear(attended.transpose(1, 2).reshape(batch, length, self.q_width), self.out)
        gate, up = F.linear(F.rms_norm(x, (width,), self.mlp_norm, 1e-6), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def attend_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def attend_bmm(q, k, v):
    """Attention as two batched products; [batch][heads][length][head] in and out."""
    batch, heads, length, head = q.shape
    q, k, v = (x.reshape(batch * heads, -1, head) for x in (q, k, v))
    if length > 1:
        hidden = torch.full((length, length), float("-inf")).triu(1)
        scores = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=head**-0.5)
    else:
        scores = torch.bmm(q * head**-0.5, k.transpose(1, 2))
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, length, head)


def rotate(x, cos, sin):
    """Rotary position embedding; `cos` and `sin` are [length][1][head/2]."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Lean(torch.nn.Module):
    """A Llama decoder with tied embeddings."""

    def __init__(self, shape, attend, max_length=256):
        super().__init__()
        self.shape = shape
        self.embedding = torch.nn.Parameter(torch.empty(shape["vocab"], shape["hidden"]))
        self.layers = torch.nn.ModuleList(Layer(attend=attend, **shape) for _ in range(shape["layers"]))
        self.norm = torch.nn.Parameter(torch.ones(shape["hidden"]))
        for p in self.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)
        half = shape["hidden"] // shape["heads"] // 2
        angle = torch.arange(max_length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos()[:, None])
        self.register_buffer("sin", angle.sin()[:, None])

    def hidden(self, ids, caches=None, start=0):
        stop = start + ids.shape[1]
        cos, sin = self.cos[start:stop], self.sin[start:stop]
        x = F.embedding(ids, self.embedding)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if caches is None else caches[i], start)
        return x

    def logits(self, x):
        return F.linear(F.rms_norm(x, (x.shape[-1],), self.norm, 1e-6), self.embedding)

    def caches(self, batch, length):
        s = self.shape
        head = s["hidden"] // s["heads"]
        return [
            tuple(torch.empty(batch, s["kv_heads"], length, head) for _ in range(2)) for _ in range(s["layers"])
        ]


def llama(shape):
    """The same model as transformers builds it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            intermediate_size=shape["intermediate"],
            max_position_embeddings=256,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def sample(logits):
    """One token per row at temperature 1 and its log-probability; the exponential race is faster than `multinomial`."""
    logp = torch.log_softmax(logits, -1)
    token = (logp.exp() / torch.empty_like(logp).exponential_()).argmax(-1, keepdim=True)
    return token, logp.gather(-1, token)


@torch.inference_mode()
def generate_lean(model, prompts, copies, new):
    """`copies` completions of each row of `prompts`: each prompt is prefilled once and its cache repeated."""
    rows, length = prompts.shape
    total = rows * copies
    caches = model.caches(total, length + new)
    if copies == 1:
        x = model.hidden(prompts, caches)
    else:
        prompt_caches = model.caches(rows, length)
        x = model.hidden(prompts, prompt_caches)
        for cache, prompt_cache in zip(caches, prompt_caches):
            for to, source in zip(cache, prompt_cache):
                to[:, :, :length].view(rows, copies, *source.shape[1:]).copy_(source[:, None])
    logits = model.logits(x[:, -1]).repeat_interleave(copies, 0)
    tokens, logps = [], []
    for i in range(new):
        token, logp = sample(logits)
        tokens.append(token)
        logps.append(logp)
        if i + 1 < new:
            logits = model.logits(model.hidden(token, caches, length + i)[:, -1])
    return torch.cat(tokens, 1), torch.cat(logps, 1)


@torch.inference_mode()
def generate_transformers(model, prompts, copies, new):
    """transformers' own loop; like TRL it repeats the prompt, so a group's prompt is prefilled `copies` times."""
    ids = prompts.repeat_interleave(copies, 0)
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        disable_compile=True,
    )


def training_batch(shape, sequences, shortest, longest):
    """Right-padded ids [sequences][longest], lengths, and a coefficient per predicted token (0 on padding)."""
    generator = torch.Generator().manual_seed(0)
    spread = [shortest + i * (longest - shortest) // max(sequences - 1, 1) for i in range(sequences)]
    lengths = torch.tensor(spread)[torch.randperm(sequences, generator=generator)]
    ids = torch.randint(shape["vocab"], (sequences, longest), generator=generator)
    real = torch.arange(longest)[None] < lengths[:, None]
    ids = ids * real
    coefs = torch.randn(sequences, longest - 1, generator=generator) * real[:, 1:]
    return ids, lengths, coefs


def train_step(logits_of, parameters, optimizer, batch, micro_batches):
    ids, lengths, coefs = batch
    optimizer.zero_grad(set_to_none=True)
    normaliser = coefs.count_nonzero()
    for rows in micro_batches:
        width = int(lengths[rows].max())
        logits = logits_of(ids[rows, : width - 1])
        targets = ids[rows, 1:width].reshape(-1)
        loss = F.cross_entropy(logits.reshape(len(targets), -1), targets, reduction="none")
        (loss * coefs[rows, : width - 1].reshape(-1)).sum().div(normaliser).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()


def count(model):
    return sum(p.numel() for p in model.parameters())


def report(what, model, form, amount, timing, unit="tokens", **more):
    seconds, disturbed = timing
    line = summary(seconds, disturbed)
    scale, name = (1e-9, "gflops") if unit == "flops" else (1.0, f"{unit}_per_s")
    rate = {name: round(amount * scale / line["seconds"], 1), f"{name}_max": round(amount * scale / line["seconds_min"], 1)}
    print(json.dumps({"what": what, "model": model, "form": form, **rate, unit: amount, **more, **line}), flush=True)


def chosen(only, what, model, form):
    """Whether a case was asked for: `only` holds `what:model:form`, or is None for all."""
    return only is None or f"{what}:{model}:{form}" in only


def build(form, shape):
    """The model of a form."""
    if form == "transformers":
        return llama(shape)
    return Lean(shape, attend_bmm if form == "lean-bmm" else attend_sdpa)


def train_cases(name, shape, timing_of, forms, only):
    batch = training_batch(shape, **TRAIN[name])
    lengths = batch[1]
    by_length = lengths.argsort()
    cuts = {
        "whole": [torch.arange(len(lengths))],
        "sorted4": list(by_length.chunk(4)),
        "sorted8": list(by_length.chunk(8)),
    }
    for form in forms:
        model = build(form, shape)
        if form == "transformers":
            logits_of = lambda ids: model(input_ids=ids, use_cache=False).logits
        else:
            logits_of = lambda ids: model.logits(model.hidden(ids))
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        for cut, micro_batches in cuts.items():
            if not chosen(only, "train", name, f"{form}/{cut}"):
                continue
            timing = timing_of(lambda: train_step(logits_of, parameters, optimizer, batch, micro_batches))
            report("train", name, f"{form}/{cut}", int(lengths.sum()), timing, parameters=count(model))


def generate_cases(name, shape, timing_of, forms, only):
    for form in forms:
        model = build(form, shape)
        for p in model.parameters():
            p.requires_grad_(False)
        run = generate_transformers if form == "transformers" else generate_lean
        for what, cases in GENERATE.items():
            if not chosen(only, what, name, form):
                continue
            case = cases[name]
            generator = torch.Generator().manual_seed(1)
            prompts = torch.randint(shape["vocab"], (case["prompts"], case["prompt"]), generator=generator)
            timing = timing_of(lambda: run(model, prompts, case["samples"], case["new"]))
            amount = case["prompts"] * case["samples"] * case["new"]
            report(what, name, form, amount, timing, parameters=count(model))


def matmul_peak(timing_of):
    """The fastest of a few large single-precision products: what this machine's cores give at most."""
    for n in (512, 1024, 2048):
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        loops = 2 ** 31 // n**3

        def run():
            for _ in range(max(loops, 1)):
                torch.mm(a, b, out=out)

        report("matmul_peak", str(n), "mm", 2 * n**3 * max(loops, 1), timing_of(run), "flops")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="small,mid")
    parser.add_argument("--what", default="matmul_peak,train,generate")
    parser.add_argument("--forms", default="lean-sdpa,lean-bmm,transformers")
    parser.add_argument("--workload", help="JSON that replaces entries of MODELS, TRAIN and GENERATE, keyed by those names")
    parser.add_argument("--only", help="cases as WHAT:MODEL:FORM, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds to wait for undisturbed repetitions of a case")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    timing_of = lambda run: measure(run, arguments.repetitions, limit=arguments.limit)
    workload = json.loads(arguments.workload or "{}")
    for model, shape in workload.get("MODELS", {}).items():
        MODELS[model].update(shape)
    for model, case in workload.get("TRAIN", {}).items():
        TRAIN[model].update(case)
    for what, cases in workload.get("GENERATE", {}).items():
        for model, case in cases.items():
            GENERATE[what][model].update(case)
    forms = arguments.forms.split(",")
    what = arguments.what.split(",")
    only = arguments.only and set(arguments.only.split(","))
    if "matmul_peak" in what:
        matmul_peak(timing_of)
    for name in arguments.models.split(","):
        shape = MODELS[name]
        if "train" in what:
            train_cases(name, shape, timing_of, forms, only)
        if "generate" in what:
            generate_cases(name, shape, timing_of, forms, only)


if __name__ == "__main__":
    main()
