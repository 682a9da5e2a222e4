"""Generation in the torch learner against `model.generate` of transformers: tokens per second.

    scripts/install-torch
    .venv-torch/bin/python bench/torch_generation.py                       CPU, one thread, 30M parameters
    python bench/torch_generation.py --device cuda --shape 0.5b --prompts 32 --completion 512

The same prompts, eight samples of each, at temperature 1, all of their full length (`equal`) or of lengths spread
evenly from a quarter on (`spread`: each prompt has a length of its own). `learner` is the call `generate` of
tamis.learner, which computes each prompt once and takes ended samples out; `continuous` is that call through
transformers' continuous batching (`learner.continuous_batching`; on a GPU only with flash-attention, and not among
the forms unless it is named, for a CPU computes it slowly); `static` and `dynamic` are `model.generate` with these
caches, not compiled, over the prompts, each eight times (it continues with all rows until the last one has ended, so that of
`spread` it computes more than the tokens that are asked for and counted); `compiled` is `static` as
transformers compiles it on a GPU, and `learner_compiled` the learner with its decoder's layers through `torch.compile`; both
only if they are named. `generate` gives no log-probability of the whole
distribution; the learner gives it and the entropy. Weights are random. One JSON line for each, the best of
`--repeats`. With `--profile`: seconds of one call of the learner by kind instead, as PyTorch's profiler counts them.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from unittest import mock

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

from quiet import seconds_and_cpu
from torch_learner import OPTIMIZER, SHAPES, compile_layers, make_model, to_its_end

from tamis.learner import row_cache
from tamis.learner.learner import Learner
from tamis.learner.protocol import Settings

GROUP = 8
DRAWING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "end_tokens": []}


def make_prompts(arguments, vocabulary):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocabulary, (arguments.prompts, arguments.prompt), generator=generator)


def lengths(arguments, kind):
    """Tokens of each prompt's samples."""
    if kind == "equal":
        return [arguments.completion] * arguments.prompts
    step = arguments.completion * 3 // 4 / max(arguments.prompts - 1, 1)
    return [arguments.completion - int(place * step) for place in range(arguments.prompts)]


def columns(prompts, wanted):
    samples = torch.arange(prompts.shape[0] * GROUP)
    kinds = sorted(set(wanted))
    return kinds, {
        "prompt_token": prompts.flatten().int(),
        "prompt_offset": torch.arange(len(prompts) + 1) * prompts.shape[1],
        "prompt_drawing": torch.tensor([kinds.index(length) for length in wanted]).int(),
        "prompt_of": torch.arange(len(prompts)).repeat_interleave(GROUP).int(),
        "sample": samples, "key": samples * 7919, "abort": torch.zeros(0, dtype=torch.int64),
    }  # fmt: skip


def open_learner(folder, arguments, rows, **options):
    """A learner that holds this policy, and samples at most `rows` rows at once."""
    options |= {"device": arguments.device, "dtype": arguments.dtype, "threads": arguments.threads}
    learner = Learner()
    learner.calls["/v1/open"](
        Settings({
            "policy": folder, "temperature": 1.0, "optimizer": OPTIMIZER, "options": options, "generation": {"max_sequences": rows},
        }), {},
    )  # fmt: skip
    return learner


def generated(learner, prompts, wanted):
    """The columns of each answer until every sample has its number of tokens, `wanted` for those of each prompt."""
    kinds, given = columns(prompts, wanted)
    settings = {"seconds": 1.0, "drawing": [{**DRAWING, "max_tokens": length} for length in kinds]}
    empty = {name: column[:0] for name, column in given.items()} | {"prompt_offset": torch.zeros(1, dtype=torch.int64)}
    while True:
        answer, found = learner.calls["/v1/generate"](Settings(settings), given)
        yield found
        if not answer["num_open"]:
            return
        settings, given = {"seconds": 1.0}, dict(empty)


def run_learner(folder, arguments, prompts, wanted, form):
    learner = open_learner(folder, arguments, arguments.prompts * GROUP, continuous_batching=form == "continuous")
    if form == "learner_compiled":
        compile_layers(learner)
    return lambda: sum(found["token"].numel() for found in generated(learner, prompts, wanted))


def load_module(folder, arguments):
    """The model as transformers has it."""
    dtype = torch.bfloat16 if arguments.dtype == "bf16" or (arguments.dtype == "auto" and arguments.device != "cpu") else torch.float32
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return module.to(arguments.device).eval()


def run_transformers(folder, arguments, prompts, wanted, cache):
    module = load_module(folder, arguments)
    tokens = prompts.to(arguments.device).repeat_interleave(GROUP, 0)

    @torch.no_grad()
    def once():
        module.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=True, top_k=0, temperature=1.0, pad_token_id=0,
            eos_token_id=None, min_new_tokens=arguments.completion, max_new_tokens=arguments.completion,
            cache_implementation=None if cache == "dynamic" else "static", disable_compile=cache != "compiled",
        )  # fmt: skip
        return sum(wanted) * GROUP

    return once


def measure(once, arguments):
    once = to_its_end(once, arguments.device)
    # Every repetition gives as many.
    total = once()
    seconds, cpu_seconds = map(min, seconds_and_cpu(once, arguments.repeats, warm_up=0))
    return {"tokens_per_s": round(total / seconds), "tokens_per_cpu_s": round(total / cpu_seconds), "tokens": total}


def profile(once):
    """Seconds by kind: products with weights are those of two matrices, those of attention come in batches."""
    attend_rows = row_cache.attend_rows

    def attend(*given):
        with torch.profiler.record_function("attend_rows"):
            return attend_rows(*given)

    once()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with mock.patch.object(row_cache, "attend_rows", attend), torch.profiler.profile(activities=activities) as profiler:
        with torch.profiler.record_function("once"):
            once()
    events = {event.key: event for event in profiler.key_averages()}
    whole, attention = (events[name].cpu_time_total / 1e6 for name in ("once", "attend_rows"))
    products = sum(events[name].self_cpu_time_total / 1e6 for name in ("aten::mm", "aten::addmm") if name in events)
    kinds = {"products_with_weights": products, "attention_of_one_query": attention, "everything_else": whole - products - attention}
    return {"seconds": round(whole, 2)} | {name: round(seconds, 2) for name, seconds in kinds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", "f32", "bf16"])
    parser.add_argument("--shape", default="30m", choices=SHAPES)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    forms = ["learner", "learner_compiled", "continuous", "static", "compiled", "dynamic"]
    parser.add_argument("--forms", nargs="+", default=["learner", "static", "dynamic"], choices=forms)
    parser.add_argument("--lengths", nargs="+", default=["equal", "spread"], choices=["equal", "spread"])
    parser.add_argument("--profile", action="store_true", help="seconds by kind; only the form `learner`, on a CPU")
    arguments = parser.parse_args()
    if arguments.profile and (arguments.forms != ["learner"] or arguments.device != "cpu"):
        parser.error("--profile needs --forms learner and --device cpu")
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.shape, folder, device=arguments.device)
        prompts = make_prompts(arguments, SHAPES[arguments.shape][5])
        for kind in arguments.lengths:
            wanted = lengths(arguments, kind)
            for form in arguments.forms:
                if form in ("learner", "learner_compiled", "continuous"):
                    once = run_learner(folder, arguments, prompts, wanted, form)
                else:
                    once = run_transformers(folder, arguments, prompts, wanted, form)
                found = profile(once) if arguments.profile else measure(once, arguments)
                print(json.dumps({"lengths": kind, "form": form, **found}), flush=True)


if __name__ == "__main__":
    main()
