#!/usr/bin/env bash
# Installs what the benchmarks compare tamis with (PyTorch, transformers, TRL, numpy) into .venv-bench at the root of the
# repository, at the versions of ../python/requirements-torch.txt and peers/requirements.txt. Nothing outside that folder is
# touched; `rm -r .venv-bench` undoes it.
#
#   bench/install_peers.sh                   only from PyPI: about 1.9 GB to download, 4.2 GB on disk
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu bench/install_peers.sh
#                                            PyTorch from its own index of CPU wheels: about 0.3 GB to download
#   TORCH_CUDA=1 bench/install_peers.sh      for a GPU: all that PyTorch requires
#   PYTHON=python3.12 bench/install_peers.sh another interpreter (3.11 or newer)
#
# ../scripts/install-torch, which installs the first half, explains the size. Every package is listed with its version,
# so pip runs with --no-deps and resolves nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv="$here/../.venv-bench"

"$here/../scripts/install-torch" "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check install --no-deps -r "$here/peers/requirements.txt"

"$venv/bin/python" - <<'PY'
import accelerate, datasets, trl
print("installed: trl", trl.__version__)
PY
echo "now: python3 bench/run.py"
