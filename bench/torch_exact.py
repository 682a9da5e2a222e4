"""`learner.exact` beside the ordinary kernels, and beside transformers: agreement of samples and passes, and its price.

    scripts/install-torch
    .venv-torch/bin/python bench/torch_exact.py                            CPU, one thread, 30M parameters
    python bench/torch_exact.py --device cuda --shape 0.5b --prompts 32 --completion 512

Eight samples of each prompt are drawn at temperature 1, all of their full length, and then a training pass over them gives
their log-probabilities again (forward, derivatives by log-probabilities, backward).

    exact         the learner with `learner.exact`
    ordinary      the learner without it
    transformers  `model.generate` with its dynamic cache, and a pass of the same model over whole rows with whole logits
                  (`sdpa`), as a trainer without packing has it

One JSON line for each. `apart` is the greatest and the mean difference of a token's log-probability between the two, in nats,
and `equal` the share of tokens whose bits are equal. Tokens a second, and a second of the processor's time (which means
something on a busy machine, too), are those of completions. Last, `check` draws with 1, 3 and 64 rows at once and passes over
the samples with prompts shared and not; it names what differs, and the exit status is 1 if something does. Weights are random.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

from quiet import seconds_and_cpu
from torch_generation import GROUP, generated, load_module, make_prompts, open_learner
from torch_learner import SHAPES, make_model, to_its_end

from tamis.learner.protocol import Settings

def sample(learner, prompts, completion):
    """Tokens and log-probabilities of every sample, [samples, completion] each."""
    held = [([], []) for _ in range(len(prompts) * GROUP)]
    for found in generated(learner, prompts, [completion] * len(prompts)):
        offsets = found["token_offset"].tolist()
        for place, number in enumerate(found["sample"].tolist()):
            for kept, name in zip(held[number], ("token", "logprob"), strict=True):
                kept += found[name][offsets[place] : offsets[place + 1]].tolist()
    return torch.tensor([tokens for tokens, _ in held]), torch.tensor([logprobs for _, logprobs in held])


def wave(prompts, tokens, shares=True):
    """The columns of a pass over samples; each sequence has a prompt of its own if they do not share it."""
    if not shares:
        prompts = prompts.repeat_interleave(GROUP, 0)
    numbers = torch.arange(len(tokens))
    return {
        "prompt_token": prompts.flatten().int(), "prompt_offset": torch.arange(len(prompts) + 1) * prompts.shape[1],
        "prompt_of": (numbers // GROUP if shares else numbers).int(),
        "completion_token": tokens.flatten().int(), "completion_offset": torch.arange(len(tokens) + 1) * tokens.shape[1],
        "rank": torch.zeros(len(tokens), dtype=torch.int32),
    }  # fmt: skip


def forward(learner, given):
    return learner.calls["/v1/forward"](Settings({"network": "policy"}), given)[1]["logprob"]


def train(learner, given):
    """Log-probabilities of a training pass, which also goes backward."""
    found = learner.calls["/v1/forward_hold"](Settings({"network": "policy"}), given)[1]["logprob"]
    learner.calls["/v1/backward"](Settings({}), {"logprob": torch.ones_like(found)})
    learner.calls["/v1/grad_norm"](Settings({"network": "policy"}), {})
    return found


def run_learner(folder, arguments, prompts, exact):
    learner = open_learner(folder, arguments, arguments.rows or len(prompts) * GROUP, exact=exact)
    return lambda: sample(learner, prompts, arguments.completion), lambda tokens: train(learner, wave(prompts, tokens))


def run_transformers(folder, arguments, prompts):
    module = load_module(folder, arguments)
    repeated = prompts.to(arguments.device).repeat_interleave(GROUP, 0)

    @torch.no_grad()
    def generate():
        torch.manual_seed(1)
        found = module.generate(
            repeated, attention_mask=torch.ones_like(repeated), do_sample=True, top_k=0, temperature=1.0, pad_token_id=0,
            eos_token_id=None, min_new_tokens=arguments.completion, max_new_tokens=arguments.completion, disable_compile=True,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        tokens = found.sequences[:, repeated.shape[1] :]
        logprobs = [one.float().log_softmax(1).gather(1, tokens[:, at, None])[:, 0] for at, one in enumerate(found.logits)]
        return tokens.cpu(), torch.stack(logprobs, 1).cpu()

    def train_pass(tokens):
        tokens = tokens.to(arguments.device)
        rows = torch.cat([repeated, tokens], 1)
        kept = slice(repeated.shape[1] - 1, -1)
        found = module(input_ids=rows, use_cache=False).logits[:, kept].float().log_softmax(2)
        found = found.gather(2, tokens[:, :, None])[:, :, 0]
        found.sum().backward()
        module.zero_grad()
        return found.detach().flatten().cpu()

    return generate, train_pass


def measure(draw, train_pass, arguments):
    """Agreement of a form's samples and passes, and how fast they are."""
    held = []
    draws = seconds_and_cpu(to_its_end(lambda: held.append(draw()), arguments.device), arguments.repeats)
    tokens, logprobs = held[-1]
    passes = seconds_and_cpu(to_its_end(lambda: held.append(train_pass(tokens)), arguments.device), arguments.repeats)
    apart = (held[-1].reshape(logprobs.shape) - logprobs).abs()
    found = {
        "apart": [float(f"{number:.3g}") for number in (apart.max().item(), apart.double().mean().item())],
        "equal": round((apart == 0).double().mean().item(), 4),
    }
    for name, laps in (("sampling", draws), ("training", passes)):
        seconds, cpu_seconds = map(min, laps)
        found[f"{name}_tokens_per_s"] = round(tokens.numel() / seconds)
        found[f"{name}_tokens_per_cpu_s"] = round(tokens.numel() / cpu_seconds)
    return found


def check(folder, arguments):
    """What of samples of 1, 3 and 64 rows at once and of passes over them is not equal to the bit."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(SHAPES[arguments.shape][5], (8, arguments.prompt), generator=generator)
    completion = min(arguments.completion, 8)
    learner = open_learner(folder, arguments, 8 * GROUP, exact=True)
    tokens, logprobs = sample(learner, prompts, completion)
    differs = []
    for rows in (1, 3):
        few = sample(open_learner(folder, arguments, rows, exact=True), prompts[:1], completion)
        if not all(torch.equal(one, whole[:GROUP]) for one, whole in zip(few, (tokens, logprobs), strict=True)):
            differs.append(f"samples of {rows} rows at once")
    found = {
        "a training pass": train(learner, wave(prompts, tokens)),
        "a pass without a graph": forward(learner, wave(prompts, tokens)),
        "a pass whose prompts are not shared": forward(learner, wave(prompts, tokens, shares=False)),
    }
    differs += [name for name, one in found.items() if not torch.equal(one.reshape(logprobs.shape), logprobs)]
    for count in (1, 3):
        if not torch.equal(forward(learner, wave(prompts[:1], tokens[:count])), logprobs[:count].flatten()):
            differs.append(f"a pass over {count} sequences")
    return differs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", "f32", "bf16"])
    parser.add_argument("--shape", default="30m", choices=SHAPES)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--rows", type=int, help="rows that the learner computes at once (all)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    forms = ["exact", "ordinary", "transformers", "check"]
    parser.add_argument("--forms", nargs="+", default=forms, choices=forms)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    differs = []
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.shape, folder)
        prompts = make_prompts(arguments, SHAPES[arguments.shape][5])
        for form in arguments.forms:
            if form == "check":
                differs = check(folder, arguments)
                print(json.dumps({"form": form, "differs": differs}), flush=True)
                continue
            if form == "transformers":
                both = run_transformers(folder, arguments, prompts)
            else:
                both = run_learner(folder, arguments, prompts, form == "exact")
            print(json.dumps({"form": form, **measure(*both, arguments)}), flush=True)
    sys.exit(bool(differs))


if __name__ == "__main__":
    main()
