"""torch's settings that change the numbers of ops on tensors, and have no version: what each is set to in this process.

An agent has the usual ones. Autocast is none of them: ops run without it at both ends (`chain.isolated`).
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
"""What torch begins with; also what an end that does not state a switch has."""
KERNELS = "kernels of torch"
"""Which of its kernels torch uses, by what the CPU can do. Two of them may round differently."""
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
"""Names of all that matters to no op of Pillow's on an image."""
_PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
_DENORMAL: float = struct.unpack("<d", (1 << 51).to_bytes(8, "little"))[0]  # a literal may be read as 0 where they are


def settings() -> dict[str, str]:
    """The switches, and what torch makes tensors of and where, by which ops also draw other numbers. About 8 us."""
    torch: Any = sys.modules.get("torch")
    return {
        "default dtype": str(torch.get_default_dtype()) if torch else "torch.float32",
        "default device": str(torch.get_default_device()) if torch else "cpu",
        **switches(),
    }


def switches() -> dict[str, str]:
    """What each is set to; nothing in a process that has not imported torch, and so has set none. About 4 us."""
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
    """Whether this thread takes the smallest numbers for 0."""
    return _DENORMAL / 2 == 0


def remedy_for(name: str) -> str:
    """What to write so that a switch is as usual, or the same at both ends; "" for what is no switch.

    Args:
        name: of what is unlike, see `software.unlike`.
    """
    return _REMEDIES.get(name, "")


def _precision(mkldnn: Any, kind: str) -> str | None:
    """That of the CPU; None in releases of torch that have one for all."""
    found = getattr(getattr(mkldnn, kind, None), "fp32_precision", None)
    return None if found is None else _PRECISIONS.get(found, found)
