"""Training passes of the torch learner: tokens per second, MFU, peak memory, error, and the time on the wire.

    scripts/install-torch
    .venv-torch/bin/python bench/torch_learner.py                          CPU, one thread, 30M parameters
    .venv-torch/bin/python bench/torch_learner.py --forms learner wire --chunk 0 1024 --update --lora 0 8
    python bench/torch_learner.py --device cuda --attention varlen sdpa --prompts shared apart --chunk 0 2048
    python bench/torch_learner.py --device cuda --shape 0.5b --tokens 16384 32768 --update --forms learner wire
    python bench/torch_learner.py --device cuda --shape 7b --tokens 16384 32768 --lora 16 --recompute --update

One pass is forward, derivatives by log-probabilities and entropies, and backward; with `--update` AdamW's step, too.

    learner   `forward_hold` and `backward` (and `optim_step`) of tamis.learner, in this process
    compiled  `learner`, its decoder's layers through `torch.compile` (a C++ compiler is needed); not unless it is named
    wire      the same calls to `python -m tamis.learner` behind a Unix socket; `wire` is the share of the time in
              which the learner did not compute: messages are written, sent and read
    padded    the model of transformers (with `--lora`: peft's adapter around it) over right-padded rows with whole logits,
              `log_softmax` and autograd, as a careful author would write it in a few lines: as many rows at a time as
              `WHOLE_LOGITS` allows, and half as many until they fit

With `--prompts apart` the learner computes a prompt again for each of its sequences, as attentions that cannot share it
(`sdpa`) always do: the remaining difference between two lines comes only from the kernel. `prompts` says what was computed.

On a GPU `padded` holds weights and moments in bf16, the learner in f32 too: the memory and the time of `padded` with
`--update` are those of less.

All compute the same numbers from the same random weights, each in a process of its own. One JSON line for each; tokens
are those of the sequences, without padding. `mfu` is the share of the peak that the model's own operations take: 6 for each
weight of a layer and token (4 with LoRA, whose frozen weights have no gradient), the head only at completions,
12 x width for each pair of tokens that see each other; a prompt counts once for its sequences, and what is computed
twice once. The peak is that of bf16
without sparsity as the maker says (`--peak-tflops` for a GPU that is not known here), on a CPU that of a product of two
matrices in f32 just before. `apart` is the largest and the mean difference of the log-probabilities from the first line's,
in nats. `peak_gib` is what PyTorch allocated on a GPU, on a CPU the process's memory above what it had when the model
was loaded.
"""

import argparse
import http.client
import json
import multiprocessing
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "bench/peers"))

from quiet import seconds_and_cpu

from tamis.learner import protocol
from tamis.learner.learner import Learner
from tamis.learner.protocol import Settings
from tamis.learner.work import device_peak

# As Qwen2.5 0.5B and 7B and Qwen3 4B, all in the architecture of Qwen3: hidden size, layers, heads, key-value heads, inner
# size, vocabulary, whether embeddings are tied, width of a head.
SHAPES = {
    "30m": (512, 8, 8, 4, 1536, 8192, False, 64),
    "0.5b": (896, 24, 14, 2, 4864, 151936, True, 64),
    "4b": (2560, 36, 32, 8, 9728, 151936, True, 128),
    "7b": (3584, 28, 28, 4, 18944, 152064, False, 128),
}
# Logits of `padded` that exist at once, at most, if a row has not more: some 18 bytes each.
WHOLE_LOGITS = 1 << 30
OPTIMIZER = {
    "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "decay_norms_and_biases": True, "max_grad_norm": 1.0,
}  # fmt: skip


def make_model(shape, folder, vocabulary=None, device="cpu"):
    """A model of a shape with random weights; with the number of tokens of the shape, or the given one.

    A GPU draws billions of weights sooner.
    """
    hidden, layers, heads, kv_heads, inner, known, tied, head_dim = SHAPES[shape]
    vocabulary = vocabulary or known
    config = transformers.Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, vocab_size=vocabulary, tie_word_embeddings=tied, max_position_embeddings=32768,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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


def operations(shape, prompts, sequences, with_lora):
    """Floating-point operations of a training pass that the model itself needs."""
    hidden, layers, heads, kv_heads, inner, vocabulary, _, head_dim = SHAPES[shape]
    width = head_dim * heads
    of_layer = 2 * hidden * width + 2 * hidden * head_dim * kv_heads + 3 * hidden * inner
    a_weight = 4 if with_lora else 6
    before = [prompt.numel() for prompt in prompts]
    completions = sum(completion.numel() for _, completion in sequences)
    pairs = sum(length * (length + 1) / 2 for length in before)
    pairs += sum(completion.numel() * (before[prompt] + (completion.numel() + 1) / 2) for prompt, completion in sequences)
    dense = a_weight * (of_layer * layers * (sum(before) + completions) + hidden * vocabulary * completions)
    return dense + 12 * layers * width * pairs


def peak_of(arguments):
    if arguments.peak_tflops:
        return arguments.peak_tflops * 1e12
    return device_peak(torch.device(arguments.device))


class Wire:
    """Calls to a learner in another process, and the seconds of computation that it reports."""

    def __init__(self, folder, threads):
        self.path = f"{folder}/socket"
        command = [sys.executable, "-m", "tamis.learner", "--listen", f"unix:{self.path}"]
        self.process = subprocess.Popen(command, cwd=ROOT / "python", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not pathlib.Path(self.path).exists():
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {self.process.returncode}")
            time.sleep(0.05)
        self.connection = http.client.HTTPConnection("localhost")
        self.connection.sock = socket.socket(socket.AF_UNIX)
        self.connection.sock.connect(self.path)
        self.seq, self.incarnation, self.computed = 0, None, 0.0

    def call(self, path, settings, columns=None):
        kind, body = protocol.encode(settings, columns)
        headers = {"Content-Type": kind}
        if self.incarnation:
            self.seq += 1
            headers |= {"Tamis-Incarnation": self.incarnation, "Tamis-Seq": str(self.seq)}
        self.connection.request("POST", path, body, headers)
        answer = self.connection.getresponse()
        values, found = protocol.decode(answer.headers["Content-Type"], answer.read())
        if answer.status != 200:
            message = values["error"]["message"]
            raise MemoryError(message) if "out of memory" in message else RuntimeError(message)
        self.incarnation = values.get("incarnation", self.incarnation)
        self.computed += values.get("seconds", 0.0)
        return values, found

    def close(self):
        self.process.terminate()
        self.process.wait()


def compile_layers(learner):
    # One for each width of the sampler; past the limit, which is 8, it goes on uncompiled.
    torch._dynamo.config.recompile_limit = 64
    for layer in learner._policy.network.decoder.layers:
        layer.compile()


def learner_form(form, folder, wave, arguments, case):
    """`(run, close, wire)`: `run` passes once and gives log-probabilities and the gradient's norm."""
    options = {"device": arguments.device, "attention": case["attention"], "threads": arguments.threads}
    options["logprob_chunk"] = case["chunk"] or wave["completion_token"].numel()
    if case["chunk"] is None:
        del options["logprob_chunk"]
    if case["lora"]:
        options["lora"] = {"rank": case["lora"], "alpha": 2 * case["lora"]}
    opening = {
        "policy": folder, "temperature": 1.0, "optimizer": OPTIMIZER, "recompute_activations": arguments.recompute, "options": options,
    }  # fmt: skip
    wire = Wire(tempfile.mkdtemp(), arguments.threads) if form == "wire" else None
    if wire:
        call = wire.call
    else:
        learner = Learner()

        def call(path, settings, columns=None):
            return learner.calls[path](Settings(settings), columns or {})

    answer, _ = call("/v1/open", opening)
    if form == "compiled":
        compile_layers(learner)
    if case["prompts"] == "apart":
        learner._policy.network.shares_prompts = False
    case["prompts"] = "shared" if answer["shares_prompts"] and case["prompts"] == "shared" else "apart"
    derivatives = {name: torch.full((wave["completion_token"].numel(),), 1e-3) for name in ("logprob", "entropy")}

    def run():
        _, held = call("/v1/forward_hold", {"network": "policy"}, dict(wave))
        call("/v1/backward", {}, dict(derivatives))
        # The norm also clears the gradient: without a step it costs a pass over it.
        settings = {"network": "policy"}
        found = call("/v1/optim_step", settings | {"learning_rate": 0.0}) if arguments.update else call("/v1/grad_norm", settings)
        return held["logprob"].cpu(), float(found[1]["grad_norm"])

    return run, (wire.close if wire else lambda: None), wire


def padded_form(folder, prompts, sequences, arguments, rank):
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    if rank:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        model.enable_input_require_grads()
    model = model.to(device).train()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=0.0, fused=True) if arguments.update else None
    rows = [torch.cat([prompts[prompt], completion]).long() for prompt, completion in sequences]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, (prompt, completion) in enumerate(sequences):
        mask[i, prompts[prompt].numel() : prompts[prompt].numel() + completion.numel()] = True
    mask = mask[:, 1:].to(device)
    at_once = min(max(WHOLE_LOGITS // (tokens.shape[1] * model.config.vocab_size), 1), len(rows))

    def backward(tokens, mask):
        # Padding is on the right: a causal model's real tokens never see it.
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        log_p = logits.log_softmax(-1)
        logprob = log_p.gather(-1, tokens[:, 1:, None])[..., 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        (((logprob + entropy) * mask).sum() * 1e-3).backward()
        return logprob.detach()[mask].float().cpu()

    def run():
        nonlocal at_once
        try:
            logprobs = torch.cat([backward(*part) for part in zip(tokens.split(at_once), mask.split(at_once), strict=True)])
        except torch.OutOfMemoryError:
            if at_once == 1:
                raise
            at_once = -(-at_once // 2)
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            return run()
        norm = torch.nn.utils.clip_grad_norm_(learned, 1.0)
        if optimizer:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return logprobs, float(norm)

    return run, lambda: None, None


def to_its_end(run, device):
    """`run` that lasts until the device has computed all of it, and gives what it gives."""
    if not device.startswith("cuda"):
        return run

    def whole():
        found = run()
        torch.cuda.synchronize()
        return found

    return whole


def resident(most):
    """Bytes of memory that this process holds, or the most that it held."""
    if most:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(held) * resource.getpagesize()


def measure(form, case, folder, arguments, pipe):
    """One line, sent through `pipe` with the log-probabilities; runs in a process of its own."""
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    prompts, sequences, tokens = make_wave(case["tokens"], *arguments.lengths, SHAPES[arguments.shape][5])
    on_gpu = arguments.device.startswith("cuda")
    close = None
    line = {"form": form}
    try:
        peak = peak_of(arguments)
        if form == "padded":
            run, close, wire = padded_form(folder, prompts, sequences, arguments, case["lora"])
            line["lora"] = case["lora"]
        else:
            run, close, wire = learner_form(form, folder, columns(prompts, sequences), arguments, case)
            line |= case
        line |= {"tokens": tokens}
        loaded = 0 if on_gpu else resident(most=False)
        run = to_its_end(run, arguments.device)
        logprobs, norm = run()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        computed, began = (wire.computed if wire else 0.0), time.perf_counter()
        seconds, cpu_seconds = map(statistics.median, seconds_and_cpu(run, arguments.repetitions, warm_up=0))
        line |= {"tokens_per_s": round(tokens / seconds), "seconds": round(seconds, 3), "norm_gradient": norm}
        if peak:
            needed = operations(arguments.shape, prompts, sequences, case["lora"])
            line["mfu"] = float(f"{needed / seconds / peak:.3g}")
        if wire:
            whole = time.perf_counter() - began
            idle = whole - (wire.computed - computed)
            line |= {"wire": float(f"{idle / whole:.3g}"), "wire_seconds_a_wave": float(f"{idle / arguments.repetitions:.3g}")}
        else:
            line["cpu_seconds"] = round(cpu_seconds, 3)
            used = torch.cuda.max_memory_allocated() if on_gpu else resident(most=True) - loaded
            line["peak_gib"] = round(used / 2**30, 2)
        pipe.send((line, logprobs.float().numpy()))
    except (MemoryError, torch.OutOfMemoryError) as error:
        pipe.send((line | case | {"failed": f"out of memory: {str(error).splitlines()[0]}"}, None))
    finally:
        if close:
            close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="30m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096], help="of a pass, about")
    parser.add_argument("--lengths", type=int, nargs=2, default=[32, 128], help="shortest and longest completion")
    parser.add_argument("--attention", nargs="+", default=["auto"])
    parser.add_argument("--prompts", nargs="+", choices=["shared", "apart"], default=["shared"], help="`apart`: of the form `learner`")
    parser.add_argument("--chunk", type=int, nargs="+", default=[None], help="tokens whose logits exist at once; 0: all")
    parser.add_argument("--lora", type=int, nargs="+", default=[0], help="ranks; 0: all weights learn")
    parser.add_argument("--recompute", action="store_true", help="activations are computed again in the backward pass")
    parser.add_argument("--update", action="store_true", help="with AdamW's step")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peak-tflops", type=float)
    parser.add_argument("--forms", nargs="+", choices=["learner", "compiled", "wire", "padded"], default=["learner", "padded"])
    arguments = parser.parse_args()
    processes, first = multiprocessing.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.shape, folder, device=arguments.device)
        of_learner = [
            (form, {"tokens": tokens, "attention": attention, "prompts": prompts, "chunk": chunk, "lora": lora})
            for tokens in arguments.tokens for lora in arguments.lora for attention in arguments.attention
            for prompts in arguments.prompts for chunk in arguments.chunk for form in arguments.forms
            if form == "learner" or (form in ("compiled", "wire") and prompts == "shared")
        ]  # fmt: skip
        # More tokens are only more rows.
        padded = [("padded", {"tokens": min(arguments.tokens), "lora": lora}) for lora in arguments.lora if "padded" in arguments.forms]
        for form, case in of_learner + padded:
            here, there = processes.Pipe()
            process = processes.Process(target=measure, args=(form, case, folder, arguments, there))
            process.start()
            there.close()
            try:
                line, logprobs = here.recv()
            except EOFError:
                line, logprobs = {"form": form, **case, "failed": "the process was killed"}, None
            process.join()
            if logprobs is not None:
                expected = first.setdefault(case["tokens"], logprobs)
                apart = abs(logprobs - expected)
                line["apart"] = [float(f"{value:.2g}") for value in (apart.max(), apart.mean())]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
