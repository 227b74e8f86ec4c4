"""Feed a GPU over a slow wire: a DataLoader that runs part of the preprocessing next to the storage.

Public names, apart from the errors, are resolved on first use, so importing a part (`sophon_loader.wire`, say) does not
import torch.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sophon_loader.errors import (
    AgentBusy,
    AgentError,
    AgentUnreachable,
    ConfigError,
    CorruptMessage,
    EncodingError,
    KeyRefused,
    MalformedMessage,
    MessageTooLong,
    NoRoom,
    OffloadWarning,
    PipelineError,
    PlanError,
    ProgramRefused,
    SampleDiffers,
    SampleError,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
    SophonError,
    TooManyPixels,
    UnknownExport,
    VersionMismatch,
    WireError,
)

if TYPE_CHECKING:
    from sophon_loader.client.options import LocalAgent, OffloadOptions
    from sophon_loader.datasets.files import FileDataset, ImageFiles
    from sophon_loader.datasets.protocol import OffloadableDataset
    from sophon_loader.datasets.remote import RemoteImageFolder
    from sophon_loader.datasets.remote_files import RemoteFiles
    from sophon_loader.loader import OffloadingDataLoader
    from sophon_loader.pipeline.op_registry import register_op
    from sophon_loader.report.report import Report

__version__ = "0.2.0"
"""The only place of the version; pyproject.toml reads it from here."""

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the user asks for it

_HOMES = {
    "FileDataset": "sophon_loader.datasets.files",
    "ImageFiles": "sophon_loader.datasets.files",
    "LocalAgent": "sophon_loader.client.options",
    "OffloadingDataLoader": "sophon_loader.loader",
    "OffloadOptions": "sophon_loader.client.options",
    "OffloadableDataset": "sophon_loader.datasets.protocol",
    "RemoteFiles": "sophon_loader.datasets.remote_files",
    "RemoteImageFolder": "sophon_loader.datasets.remote",
    "Report": "sophon_loader.report.report",
    "register_op": "sophon_loader.pipeline.op_registry",
}

__all__ = [
    "AgentBusy",
    "AgentError",
    "AgentUnreachable",
    "ConfigError",
    "CorruptMessage",
    "EncodingError",
    "FileDataset",
    "ImageFiles",
    "KeyRefused",
    "LocalAgent",
    "MalformedMessage",
    "MessageTooLong",
    "NoRoom",
    "OffloadOptions",
    "OffloadWarning",
    "OffloadableDataset",
    "OffloadingDataLoader",
    "PipelineError",
    "PlanError",
    "ProgramRefused",
    "RemoteFiles",
    "RemoteImageFolder",
    "Report",
    "SampleDiffers",
    "SampleError",
    "SampleMissing",
    "SampleOutsideExport",
    "SampleUnreadable",
    "SophonError",
    "TooManyPixels",
    "UnknownExport",
    "VersionMismatch",
    "WireError",
    "register_op",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from sophon_loader.host.installed import torch_wanted

        if wanted := torch_wanted(f"sophon_loader.{name}"):
            raise ImportError(wanted) from error
        raise


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
