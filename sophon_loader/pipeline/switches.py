"""Reads those of torch's settings that change the numbers of ops on tensors and have no version.

An agent has the usual values. Autocast is not included: ops run without it at both ends (`chain.isolated`).
"""

from __future__ import annotations

import struct
import sys
from typing import Any

USUAL = {
    "float32 matmul precision": "highest",
    "float32 convolution precision": "highest",
    "mkldnn": "on",
    "flush denormal": "off",
    "deterministic algorithms": "off",
}
"""torch's initial values. They also hold for an end that does not state a switch."""
KERNELS = "kernels of torch"
"""Name of torch's set of kernels, which it selects by the CPU's abilities. Two sets may round differently."""
_REMEDIES = {
    "float32 matmul precision": "torch.set_float32_matmul_precision('highest'); for the GPU alone there is "
    "torch.backends.cuda.matmul.fp32_precision",
    "float32 convolution precision": "torch.backends.mkldnn.conv.fp32_precision = 'ieee'",
    "mkldnn": "torch.backends.mkldnn.enabled = True and .deterministic = False",
    "flush denormal": "torch.set_flush_denormal(False)",
    "deterministic algorithms": "torch.use_deterministic_algorithms(False)",
    KERNELS: "the same ATEN_CPU_CAPABILITY in the environment of both ends",
}
ON_TENSORS = frozenset(_REMEDIES)
"""Names of settings that do not affect Pillow's ops on images."""
_PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
_DENORMAL: float = struct.unpack("<d", (1 << 51).to_bytes(8, "little"))[0]  # a literal may be read as 0 where they are


def settings() -> dict[str, str]:
    """Return the switches, and torch's default dtype and device, by which ops also draw other numbers. About 8 us."""
    torch: Any = sys.modules.get("torch")
    return {
        "default dtype": str(torch.get_default_dtype()) if torch else "torch.float32",
        "default device": str(torch.get_default_device()) if torch else "cpu",
        **switches(),
    }


def switches() -> dict[str, str]:
    """Return each switch's value; {} in a process that has not imported torch, and so has set none. About 4 us."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    mkldnn = torch.backends.mkldnn
    of_kind = "on, deterministic" if mkldnn.deterministic else "on"
    matmul = _precision(mkldnn, "matmul")
    return {
        "float32 matmul precision": torch.get_float32_matmul_precision() if matmul is None else matmul,
        "float32 convolution precision": _precision(mkldnn, "conv") or "highest",
        "mkldnn": of_kind if mkldnn.enabled else "off",
        "flush denormal": "on" if flushes_denormals() else "off",
        "deterministic algorithms": "on" if torch.are_deterministic_algorithms_enabled() else "off",
        KERNELS: torch.backends.cpu.get_cpu_capability(),
    }


def flushes_denormals() -> bool:
    """Return True if this thread treats the smallest numbers as 0."""
    return _DENORMAL / 2 == 0


def remedy_for(name: str) -> str:
    """Return code that makes a switch usual, or equal at both ends; "" if the name is no switch.

    Args:
        name: name among the differences, see `software.unlike`.
    """
    return _REMEDIES.get(name, "")


def _precision(mkldnn: Any, kind: str) -> str | None:
    """Return the CPU's precision; None in releases of torch that have one for all devices."""
    found = getattr(getattr(mkldnn, kind, None), "fp32_precision", None)
    return None if found is None else _PRECISIONS.get(found, found)
