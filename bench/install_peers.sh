#!/usr/bin/env bash
# Installs what the benchmarks compare tamis with (PyTorch, transformers, TRL, numpy) into .venv-bench at the root of the
# repository, at the versions of peers/requirements.txt. Nothing outside that folder is touched; `rm -r .venv-bench` undoes it.
#
#   bench/install_peers.sh                   from PyPI alone: about 1.9 GB to download, 4.2 GB on disk
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu bench/install_peers.sh
#                                            PyTorch from its own index of CPU wheels: about 0.3 GB to download
#   PYTHON=python3.12 bench/install_peers.sh another interpreter (3.11 or newer)
#
# Why so much: PyPI has no CPU build of PyTorch for Linux. Its wheel's libtorch_python.so names libtorch_cuda.so, which names
# cublas, cudnn, nccl and others, so `import torch` fails without them even where no GPU is. requirements-cuda.txt lists just
# those that the loader needs; triton, cusolver, nvtx and cuda-bindings, which the wheel asks for too, are left out. The CPU
# kernels (oneMKL, oneDNN) are the same in both builds.
#
# Every package is listed with its version, so pip runs with --no-deps and resolves nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv="$here/../.venv-bench"
python=${PYTHON:-python3}

if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

torch=$(grep -E '^torch==' "$here/peers/requirements.txt")
if [ "$(uname -s)" != Linux ]; then
    # Off Linux, PyPI's wheel is the CPU build.
    "${pip[@]}" install --no-deps "$torch"
elif [ -n "${TORCH_INDEX:-}" ]; then
    "${pip[@]}" install --no-deps --index-url "$TORCH_INDEX" "$torch"
else
    "${pip[@]}" install --no-deps "$torch" -r "$here/peers/requirements-cuda.txt"
fi
"${pip[@]}" install --no-deps -r "$here/peers/requirements.txt"

"$venv/bin/python" - <<'PY'
import accelerate, datasets, numpy, torch, transformers, trl
print("installed: torch", torch.__version__, "transformers", transformers.__version__, "trl", trl.__version__,
      "numpy", numpy.__version__, "| CPU kernels:", torch.backends.cpu.get_cpu_capability())
PY
echo "now: python3 bench/run.py"
