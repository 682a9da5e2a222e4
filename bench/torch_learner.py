"""Training passes of the torch learner against transformers with a padded batch: tokens per second and peak memory.

    scripts/install-torch
    .venv-torch/bin/python bench/torch_learner.py                          CPU, one thread, 30M parameters
    python bench/torch_learner.py --device cuda --shape 0.5b --tokens 16384 --recompute
    python bench/torch_learner.py --device cuda --attention varlen sdpa

One pass is forward, derivatives by log-probabilities and entropies, and backward; no optimizer step. `learner` is
`forward_hold` and `backward` of tamis.learner, `padded` the model of transformers over right-padded rows with whole
logits, `log_softmax` and autograd, as a careful author would write it in a few lines. Both compute the same numbers.
Weights are random. One JSON line for each form; tokens are those of the sequences, without padding.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

from quiet import seconds_and_cpu

from tamis.learner.learner import Learner
from tamis.learner.protocol import Settings

# Qwen3 without, Qwen2.5 with tied embeddings: hidden size, layers, heads, key-value heads, inner size, vocabulary.
SHAPES = {
    "30m": (512, 8, 8, 4, 1536, 8192, False),
    "0.5b": (896, 24, 14, 2, 4864, 151936, True),
    "7b": (3584, 28, 28, 4, 18944, 152064, False),
}
OPTIMIZER = {
    "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "decay_norms_and_biases": True, "max_grad_norm": 1.0,
}  # fmt: skip


def make_model(shape, folder):
    hidden, layers, heads, kv_heads, inner, vocabulary, tied = SHAPES[shape]
    config = transformers.Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
        intermediate_size=inner, vocab_size=vocabulary, tie_word_embeddings=tied, max_position_embeddings=32768,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def make_wave(tokens, shortest, longest, vocabulary):
    """Groups of eight: prompts of a quarter, completions of a length between, until all tokens are used."""
    generator = torch.Generator().manual_seed(1)
    prompts, sequences, used = [], [], 0
    while used < tokens:
        prompts.append(torch.randint(vocabulary, (longest // 4,), generator=generator).int())
        for _ in range(8):
            length = int(torch.randint(shortest, longest + 1, (1,), generator=generator))
            sequences.append((len(prompts) - 1, torch.randint(vocabulary, (length,), generator=generator).int()))
            used += longest // 4 + length
    return prompts, sequences, used


def offsets(parts):
    return torch.tensor([0, *(part.numel() for part in parts)]).cumsum(0)


def columns(prompts, sequences):
    completions = [completion for _, completion in sequences]
    return {
        "prompt_token": torch.cat(prompts), "prompt_offset": offsets(prompts),
        "prompt_of": torch.tensor([prompt for prompt, _ in sequences]).int(),
        "completion_token": torch.cat(completions), "completion_offset": offsets(completions),
        "rank": torch.zeros(len(sequences), dtype=torch.int32),
    }  # fmt: skip


def learner_pass(folder, wave, arguments, attention):
    learner = Learner()
    options = {
        "device": arguments.device,
        "attention": attention,
        "logprob_chunk": arguments.chunk,
        "threads": arguments.threads,
    }
    given = {
        "policy": folder,
        "temperature": 1.0,
        "optimizer": OPTIMIZER,
        "recompute_activations": arguments.recompute,
        "options": options,
    }
    learner.open(Settings(given), {})
    network = learner._policy.network
    assert attention == "auto" or network.is_packed

    def run():
        learner.forward_hold(Settings({"network": "policy"}), dict(wave))
        derivatives = {name: torch.ones(wave["completion_token"].numel()) / 1000 for name in ("logprob", "entropy")}
        learner.backward(Settings({}), derivatives)

    return (
        run,
        lambda: network.weights.gradient("model.norm.weight"),
        network.attention,
        network.weights.clear_gradients,
    )


def padded_pass(folder, prompts, sequences, arguments):
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        .to(device)
        .train()
    )
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rows = [torch.cat([prompts[prompt], completion]).long() for prompt, completion in sequences]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    mask = torch.zeros(tokens.shape)
    for i, (prompt, completion) in enumerate(sequences):
        mask[i, prompts[prompt].numel() : prompts[prompt].numel() + completion.numel()] = 1
    mask = mask[:, 1:].to(device)

    def run():
        # Padding stands on the right: a causal model's real tokens never see it.
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        log_p = logits.log_softmax(-1)
        logprob = log_p.gather(-1, tokens[:, 1:, None])[..., 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        (((logprob + entropy) * mask).sum() / 1000).backward()

    return (
        run,
        lambda: model.model.norm.weight.grad,
        f"sdpa, {tokens.numel()} with padding",
        lambda: model.zero_grad(set_to_none=True),
    )


def to_its_end(run, device):
    """`run` that lasts until the device has computed all of it, and gives what it gives."""
    if not device.startswith("cuda"):
        return run

    def whole():
        found = run()
        torch.cuda.synchronize()
        return found

    return whole


def measure(what, made, tokens, arguments):
    run, gradient, attention, clear = made
    on_gpu = arguments.device.startswith("cuda")
    run = to_its_end(run, arguments.device)
    clear()
    run()
    norm = gradient().float().norm().item()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds, cpu_seconds = map(statistics.median, seconds_and_cpu(run, arguments.repetitions, warm_up=0))
    line = {
        "form": what,
        "attention": attention,
        "tokens_per_s": round(tokens / seconds),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "norm_gradient": norm,
    }
    if on_gpu:
        line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="30m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4096, help="of a pass, about")
    parser.add_argument("--lengths", type=int, nargs=2, default=[32, 128], help="shortest and longest completion")
    parser.add_argument("--attention", nargs="+", default=["auto"])
    parser.add_argument("--chunk", type=int, default=None)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--forms", nargs="+", choices=["learner", "padded"], default=["learner", "padded"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.shape, folder)
        prompts, sequences, tokens = make_wave(arguments.tokens, *arguments.lengths, SHAPES[arguments.shape][5])
        if "learner" in arguments.forms:
            for attention in arguments.attention:
                measure(
                    "learner",
                    learner_pass(folder, columns(prompts, sequences), arguments, attention),
                    tokens,
                    arguments,
                )
        if "padded" in arguments.forms:
            measure("padded", padded_pass(folder, prompts, sequences, arguments), tokens, arguments)


if __name__ == "__main__":
    main()
