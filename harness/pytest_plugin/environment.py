"""The machine and versions of a run as flat text, without the names of persons or hosts."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from harness.worlds.attached import fleet

PACKAGES = ("torch", "pytest", "hypothesis", "pytest-html", "pytest-timeout")
#: Prefixes of variables that change how ranks communicate or compute.
COMMUNICATION = ("NCCL_", "CCL_", "HCCL_", "RCCL_", "GLOO_")
VARIABLES = (*COMMUNICATION, "TORCH_", "OMP_", "CUDA_VISIBLE", "HIP_VISIBLE", "ASCEND_RT_VISIBLE")


def environment() -> dict[str, str]:
    """Versions, processor, accelerators and relevant environment variables, in a stable order."""
    facts = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    facts |= {package: _version(package) for package in PACKAGES}
    facts["processor cores"] = str(os.cpu_count())
    facts |= _accelerators() | fleet.facts()
    return facts | {key: os.environ[key] for key in sorted(os.environ) if key.startswith(VARIABLES)}


def _version(package: str) -> str:
    if package == "torch":
        return str(torch.__version__)
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _accelerators() -> dict[str, str]:
    if not torch.accelerator.is_available():
        return {"accelerator": "none"}
    kind = torch.accelerator.current_accelerator()
    facts = {"accelerator": f"{torch.accelerator.device_count()} × {kind.type if kind else 'unknown'}"}
    if torch.cuda.is_available():
        facts["accelerator name"] = torch.cuda.get_device_name(0)
        facts["CUDA"] = str(torch.version.cuda)
        facts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts
