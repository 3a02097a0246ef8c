"""``cerebro-eeg doctor``: versions, devices and optional packages, in a form that is safe to publish.

The output names neither the user nor the machine: no host name, no user name, and no path except those below ``~``
that every installation shares.
"""

import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from cerebro_eeg import __version__
from cerebro_eeg.errors import CheckpointError, without_folders
from cerebro_eeg.model.shipped import SHIPPED, shipped_weights

SOUND = "sound"
REQUIRED = ("torch", "numpy", "scipy", "safetensors", "huggingface_hub", "tyro", "scikit-learn", "matplotlib")

OPTIONAL = {  # distribution -> import name, what it is for
    "mne": ("mne", "reading other formats than EDF, BDF and tables (extra: formats)"),
    "pyxdf": ("pyxdf", "reading XDF (extra: formats)"),
    "moabb": ("moabb", "preparing its datasets (extra: moabb)"),
    "distributed": ("distributed", "preparing on a Dask cluster (extra: dask)"),
    "pyarrow": ("pyarrow", "features as parquet (extra: parquet)"),
    "tensorboard": ("tensorboard", "watching a run (extra: tensorboard)"),
    "wandb": ("wandb", "watching a run (extra: wandb)"),
    "triton": ("triton", "torch.compile on CUDA"),
    "braindecode": ("braindecode", "its models beside ours; never needed"),
}


@dataclass(frozen=True)
class TorchDevice:
    """One device that torch can compute on."""

    name: str
    """Its name in torch: ``cpu``, ``cuda:0``, ``mps``."""
    model: str
    memory_gib: float | None
    """Its own memory; None for devices that share the machine's."""
    bf16: bool
    """Whether it computes in bfloat16 (on CUDA: in hardware)."""


@dataclass(frozen=True)
class OptionalPackage:
    """One optional package."""

    version: str | None
    """None if it is not installed."""
    purpose: str


@dataclass(frozen=True)
class Doctor:
    """The findings of ``doctor``."""

    versions: dict[str, str | None]
    platform: str
    cpu_cores: int
    torch_threads: int | None
    torch_cuda: str | None
    """The CUDA or ROCm version that torch was built for; None for a CPU build."""
    torch_error: str | None
    """The error of importing torch, if any."""
    devices: list[TorchDevice]
    extras: dict[str, OptionalPackage]
    weights: dict[str, str]
    """For each file of weights that comes with the package: sound, or what is wrong with it."""
    caches: dict[str, str]

    @property
    def exit_code(self) -> int:
        """1 when the package cannot work here: torch does not load, a package is missing or weights are damaged."""
        broken = any(found != SOUND for found in self.weights.values())
        return int(self.torch_error is not None or None in self.versions.values() or broken)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        threads = "" if self.torch_threads is None else f", torch uses {self.torch_threads} threads"
        torch_build = [("torch built for", self.torch_cuda or "CPU")]
        if self.torch_error is not None:
            torch_build = [("torch does not load", self.torch_error)]
        devices = [
            (d.name, f"{d.model}{'' if d.memory_gib is None else f', {d.memory_gib:.1f} GiB'}, bf16 {_yes(d.bf16)}")
            for d in self.devices
        ]
        extras = [(name, f"{e.version or 'absent':10}  {e.purpose}") for name, e in self.extras.items()]
        sections = {
            "versions": [(name, found or "MISSING") for name, found in self.versions.items()],
            "machine": [("platform", self.platform), ("CPU", f"{self.cpu_cores} cores{threads}"), *torch_build],
            "devices": devices or [("none", "torch does not load")],
            "optional packages": extras,
            "weights in the package": list(self.weights.items()),
            "caches": list(self.caches.items()),
        }
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        return "\n".join(
            f"{title}\n" + "\n".join(f"  {name:{width}}  {value}" for name, value in rows)
            for title, rows in sections.items()
        )


def doctor() -> Doctor:
    """Show versions, devices, optional packages and shipped weights; exit code 1 when torch or these do not load.

    The output names neither you nor your machine and can be pasted into a public report.
    """
    versions: dict[str, str | None] = {"cerebro-eeg": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in REQUIRED}
    devices: list[TorchDevice] = []
    threads = cuda = error = None
    try:
        import torch
    except Exception as failure:  # a broken installation raises OSError as well as ImportError
        error = without_folders(f"{type(failure).__name__}: {failure}")
    else:
        devices, threads, cuda = _devices(), torch.get_num_threads(), torch.version.cuda or torch.version.hip
    return Doctor(
        versions=versions,
        platform=_platform(),
        cpu_cores=_cores(),
        torch_threads=threads,
        torch_cuda=cuda,
        torch_error=error,
        devices=devices,
        extras={
            name: OptionalPackage((_version(name) or "present") if find_spec(module) else None, purpose)
            for name, (module, purpose) in OPTIONAL.items()
        },
        weights={name: _weights(name) for name in SHIPPED},
        caches={
            "Hugging Face Hub": _cache(("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"), ".cache/huggingface/hub"),
            "Triton": _cache(("TRITON_CACHE_DIR", "TRITON_HOME"), ".triton/cache"),
        },
    )


def _devices() -> list[TorchDevice]:
    import torch

    devices = [TorchDevice("cpu", torch.backends.cpu.get_cpu_capability(), None, _computes_bf16("cpu"))]
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        bf16 = found.major >= 8 if torch.version.cuda else torch.cuda.is_bf16_supported()  # 8: Ampere, the first
        devices.append(TorchDevice(f"cuda:{i}", found.name, found.total_memory / 2**30, bf16))
    if torch.backends.mps.is_available():
        devices.append(TorchDevice("mps", "Apple GPU", None, _computes_bf16("mps")))
    return devices


def _computes_bf16(device: str) -> bool:
    import torch

    try:
        x = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
        return bool((x @ x == 8).all())
    except (RuntimeError, TypeError):
        return False


def _weights(name: str) -> str:
    try:
        shipped_weights(name)
    except CheckpointError as error:
        return without_folders(f"DAMAGED: {error}")
    return SOUND


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _platform() -> str:
    release = re.match(r"[\d.]*", platform.release())  # the rest may be a private name
    return f"{platform.system()} {release.group() if release else ''} {platform.machine()}"


def _cores() -> int:
    """Count the cores that this process may use; in a container or a job these can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache(variables: tuple[str, ...], default: str) -> str:
    """Say where a cache is, without a path that its owner chose."""
    chosen = next((name for name in variables if os.environ.get(name)), None)
    return f"~/{default}" if chosen is None else f"chosen with {chosen}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
