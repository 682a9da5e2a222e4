#!/usr/bin/env bash
# mlx-lm 0.32.2 (PyPI) and folders that transformers 5.23.0 saves.
#
# Expected: a Llama model that was saved with `save_pretrained` has the same rotary base in mlx-lm, or is refused.
# Seen: transformers 5 writes the base into `rope_parameters` of config.json and no longer beside it. mlx-lm's llama
# (also qwen2) reads `rope_theta` only and takes its default 10000 (qwen2: 1000000) without a word: a Llama 3 with base
# 500000 computes other positions and answers worse the longer the text is. Its qwen3 reads both places.
# What helps: write `rope_theta` beside `rope_parameters` (`tamis export` and checkpoints have both).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mlx-lm==0.32.2 'mlx[cpu]==0.32.4' transformers==5.23.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import json
import pathlib

import mlx.core as mx
import mlx.utils
from mlx_lm.models import llama
from mlx_lm.utils import load_model
from transformers import LlamaConfig

shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=64, rms_norm_eps=1e-6)
config = LlamaConfig(**shape, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
config.save_pretrained("model")
written = json.loads(pathlib.Path("model/config.json").read_text())
print("config.json has rope_theta:", "rope_theta" in written, "| rope_parameters:", written["rope_parameters"])
mx.random.seed(0)
true = llama.Model(llama.ModelArgs(model_type="llama", rope_theta=500000.0, tie_word_embeddings=False, **shape))
weights = dict(mlx.utils.tree_flatten(true.parameters()))
mx.save_safetensors("model/model.safetensors", weights, metadata={"format": "pt"})
tokens = mx.array([[index % 64 for index in range(200)]])


def difference():
    model, _ = load_model(pathlib.Path("model"))
    return model.args.rope_theta, float(mx.abs(model(tokens) - true(tokens)).max())


as_saved = difference()
print("as saved: rope_theta %g, largest difference of a logit %.3f" % as_saved)
written["rope_theta"] = 500000.0
pathlib.Path("model/config.json").write_text(json.dumps(written))
beside = difference()
print("with rope_theta beside it: rope_theta %g, largest difference of a logit %.3f" % beside)
assert "rope_theta" not in json.loads(config.to_json_string()), "transformers writes rope_theta again"
assert as_saved[0] == 10000 and as_saved[1] > 0.01, as_saved
assert beside == (500000.0, 0.0), beside
PYTHON
# Output on 2026-11-29, Python 3.11.7:
#   config.json has rope_theta: False | rope_parameters: {'rope_theta': 500000.0, 'rope_type': 'default'}
#   as saved: rope_theta 10000, largest difference of a logit 0.282
#   with rope_theta beside it: rope_theta 500000, largest difference of a logit 0.000
