#!/usr/bin/env bash
# Triton (PyPI), TRITON_INTERPRET=1: kernels on a CPU, as tests of kernels use it.
#
# Expected: a kernel gives on the CPU what it gives on a GPU, up to rounding.
# Seen: two things.
# 1. Triton 3.6.0 and 3.9.0: `tl.dot` of two bf16 blocks multiplies their 16 bits as integers: numbers about 1e9, no error.
#    Loads, stores, sums and casts of bf16 are right, and so are products of f16 and f32.
# 2. Triton 3.6.0, which PyTorch 2.11 asks for: a `for` loop whose bound was loaded from memory raises TypeError with NumPy
#    2.4 (it runs with 2.3). A number is an array of one element there, which NumPy no longer turns into an index. Triton
#    3.9.0 runs it with both.
# What helps: cast to f32 before `tl.dot` if the kernel is interpreted (tamis does), and Triton 3.9, or NumPy below 2.4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
# 2.5 GB: PyPI has PyTorch for Linux only with CUDA.
"${pip[@]}" torch==2.11.0 triton==3.6.0 numpy==2.3.5
cat >"$folder/kernels.py" <<'PYTHON'
import os

os.environ["TRITON_INTERPRET"] = "1"
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def multiply(left, right, out, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(left + rows * N + columns), tl.load(right + rows * N + columns))
    tl.store(out + rows * N + columns, product)


@triton.jit
def count(length, out):
    total = 0
    for at in range(0, tl.load(length)):
        total += at
    tl.store(out, total)


if sys.argv[1] == "dot":
    ones = torch.ones(16, 16)
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        out = torch.zeros(16, 16)
        multiply[(1,)](ones.to(kind), ones.to(kind), out, 16)
        print(str(kind).removeprefix("torch."), f"{float(out[0, 0]):.3g}", end="  ")
else:
    out = torch.zeros(1, dtype=torch.int64)
    try:
        count[(1,)](torch.tensor([4]), out)
        print(int(out))
    except Exception as error:
        print("TypeError" if "TypeError" in repr(error) else repr(error)[:200])
PYTHON
python=$folder/venv/bin/python
older=$("$python" "$folder/kernels.py" dot)
below=$("$python" "$folder/kernels.py" loop)
"${pip[@]}" --no-deps numpy==2.4.6
from=$("$python" "$folder/kernels.py" loop)
"${pip[@]}" --no-deps triton==3.9.0
newer=$("$python" "$folder/kernels.py" dot)
after=$("$python" "$folder/kernels.py" loop)
echo "1. ones(16, 16) @ ones(16, 16), each 16: Triton 3.6.0 $older; 3.9.0 $newer"
echo "2. a loop to a loaded bound: Triton 3.6.0 with NumPy 2.3.5 $below, with 2.4.6 $from; Triton 3.9.0 with 2.4.6 $after"
wrong="float32 16  float16 16  bfloat16 4.23e+09  "
[ "$older" = "$wrong" ] && [ "$newer" = "$wrong" ] && [ "$below" = 6 ] && [ "$from" = TypeError ] && [ "$after" = 6 ]
