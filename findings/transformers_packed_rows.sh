#!/usr/bin/env bash
# transformers 5.23.0 (PyPI) with torch 2.15.0 on a CPU: sequences packed into one row, as `DataCollatorWithFlattening` makes
# them, with positions that restart at 0. Fetches torch, too (2 GB).
#
# Expected: each sequence has the logits that it has alone, as the documentation of packing promises, or an error.
# Seen: three kinds of models, without an error or a warning about it.
# 1. Llama (Qwen3, Gemma 3 and others as well): the restart is noticed only if no cache and no attention mask is given. The
#    default of a call is `use_cache=True`, so a plain `model(**batch)` lets the second sequence read the first, in train
#    mode, too. `use_cache=False` separates them, and gradient checkpointing does, because it turns the cache off.
# 2. Qwen3.5 (Qwen3-Next as well): without a cache the layers of full attention are separated; the state of the linear
#    layers runs on from one sequence to the next.
# 3. GPT-OSS hands no positions to its mask, and Mamba 2 has none: both mix sequences always.
# What helps: `use_cache=False` for the first kind (the Trainer of transformers sets it, a loop of one's own must). For the
# second, the collator's `return_seq_idx=True, return_flash_attn_kwargs=True`: without the kernels that can separate the
# states (causal_conv1d, flash-linear-attention) that is an error. One sequence a row for the third. Compare a packed row
# with single rows once for each architecture.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check)
"${pip[@]}" torch==2.15.0 transformers==5.23.0
cat >"$folder/packed.py" <<'PYTHON'
import torch
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, GptOssConfig, LlamaConfig, Mamba2Config, Qwen3_5TextConfig

shape = dict(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
configs = {
    "Llama": LlamaConfig(**shape),
    "Qwen3.5": Qwen3_5TextConfig(
        **shape, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8
    ),
    "GPT-OSS": GptOssConfig(**shape, num_local_experts=4, num_experts_per_tok=2),
    "Mamba 2": Mamba2Config(vocab_size=100, hidden_size=32, num_heads=8, head_dim=8, state_size=8, n_groups=1, num_hidden_layers=2, chunk_size=8),
}
seen = {}
for name, config in configs.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    sequences = [torch.randint(3, 100, (length,)).tolist() for length in (7, 9)]
    batch = DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": each} for each in sequences])
    assert batch["position_ids"].tolist() == [[*range(7), *range(9)]]
    with torch.no_grad():
        alone = model(torch.tensor([sequences[1]])).logits[0].log_softmax(-1)
        answers = []
        for arguments in ({}, {"use_cache": False}):
            packed = model(**batch, **arguments).logits[0, 7:].log_softmax(-1)
            change = (packed - alone).abs().max().item()
            answers.append("apart" if change < 1e-5 else "mixed" if change > 1e-3 else "unclear")
            print(f"{name}, {arguments or 'default call'}: log-probabilities change by {change:.1e} at most: {answers[-1]}")
    seen[name] = answers
collator = DataCollatorWithFlattening(return_tensors="pt", return_seq_idx=True, return_flash_attn_kwargs=True)
batch = collator([{"input_ids": each} for each in sequences])
try:
    AutoModelForCausalLM.from_config(configs["Qwen3.5"])(**batch, use_cache=False)
except ValueError as error:
    print("Qwen3.5, seq_idx:", str(error).split(" without")[0])
    assert "packed sequences" in str(error), error
else:
    raise AssertionError("no error without the kernels")
assert seen == {"Llama": ["mixed", "apart"], **{name: ["mixed", "mixed"] for name in ("Qwen3.5", "GPT-OSS", "Mamba 2")}}, seen
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore "$folder/packed.py" 2>"$folder/stderr" || { tail -5 "$folder/stderr" && false; }
# Output on 2026-11-30, Python 3.11.7:
#   Llama, default call: log-probabilities change by 2.2e-01 at most: mixed
#   Llama, {'use_cache': False}: log-probabilities change by 4.8e-07 at most: apart
#   Qwen3.5, default call: log-probabilities change by 9.5e-02 at most: mixed
#   Qwen3.5, {'use_cache': False}: log-probabilities change by 3.6e-02 at most: mixed
#   GPT-OSS, default call: log-probabilities change by 2.5e-01 at most: mixed
#   GPT-OSS, {'use_cache': False}: log-probabilities change by 2.5e-01 at most: mixed
#   Mamba 2, default call: log-probabilities change by 2.0e+00 at most: mixed
#   Mamba 2, {'use_cache': False}: log-probabilities change by 2.0e+00 at most: mixed
#   Qwen3.5, seq_idx: `causal_conv1d_fn` can't keep packed sequences apart
