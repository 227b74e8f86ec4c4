"""Systems that are compared, and the common parts of their processes. Imports nothing but the standard library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Values of bench.loading.training_pipeline, for systems that have no torchvision."""


@dataclass(frozen=True)
class System:
    """One row of the table.

    Args:
        name: as on the command line.
        module: the file in this folder that knows it.
        what: what it is made to do, for the table of the results.
        packages: what pip installs for it, in an environment of its own; none for what the project has anyway.
        sees_project: whether that environment sees the project's packages (torch, torchvision, numpy).
        programs: what it needs besides.
        serves: whether it has a server of its own; ours share an agent that serves the files.
        remote_workers: whether its workers are at the server, so that another number of them is another server.
        apart: whether it is measured after the others have ended, because it uses CPU that is seen while it waits.
    """

    name: str
    module: str
    what: str
    packages: tuple[str, ...] = ()
    sees_project: bool = True
    programs: tuple[str, ...] = ()
    serves: bool = True
    remote_workers: bool = False
    apart: bool = False

    @property
    def ours(self) -> bool:
        return self.module.startswith("our")


_TENSORFLOW: dict[str, Any] = {"packages": ("tensorflow-cpu",), "sees_project": False, "remote_workers": True}
SYSTEMS = {
    system.name: system
    for system in (
        System("http", "http_files", "DataLoader, a Dataset of HTTP requests; nginx", programs=("nginx",)),
        System(
            "webdataset",
            "webdataset_tars",
            "tar shards over HTTP; nginx",
            packages=("webdataset",),
            programs=("nginx", "curl"),
        ),
        System(
            "streaming", "streaming_s3", "MDS shards over S3; moto", packages=("mosaicml-streaming", "moto[server]")
        ),
        System("tf-data", "tf_data", "tf.data service, float32, not compressed", **_TENSORFLOW),
        System("tf-data-auto", "tf_data", "tf.data service, float32, compression AUTO", **_TENSORFLOW),
        System("tf-data-uint8", "tf_data", "tf.data service, uint8, AUTO; client normalises", **_TENSORFLOW),
        System(
            "rpcdataloader",
            "rpc_workers",
            "whole batches from remote workers",
            packages=("rpcdataloader",),
            remote_workers=True,
        ),
        System(
            "ray-data",
            "ray_data",
            "Ray Data, ops at the storage node",
            packages=("ray[data]",),
            remote_workers=True,
            apart=True,
        ),
        System(
            "s3-torch",
            "s3_bucket",
            "DataLoader, s3torchconnector; SeaweedFS",
            packages=("s3torchconnector",),
            programs=("weed",),
        ),
        System("s3-fsspec", "s3_bucket", "DataLoader, s3fs; SeaweedFS", packages=("s3fs",), programs=("weed",)),
        System("no-off", "ours", "ours, files", serves=False),
        System("sophon", "ours", "ours, the paper's policy", serves=False),
        System("auto", "ours", "ours, the default", serves=False),
        System("auto-tars", "our_tars", "ours, the default; the tar shards of webdataset"),
        System("auto-bucket", "our_bucket", "ours, the default; the bucket of s3-torch", programs=("weed",)),
    )
}


@dataclass(frozen=True)
class Settings:
    """Settings of a system's process.

    Args:
        system: its name.
        data: ImageFolder tree; clients list its names, only servers read its files.
        folder: for what it makes (shards, caches); each process has its own.
        address, port: of the server; it may use the next port as well.
        workers: number of loader processes at the client, or of the system's equivalent.
        nginx: the program, where it is needed.
    """

    system: str
    data: str
    folder: str
    address: str
    port: int
    workers: int
    batch_size: int
    nginx: str | None

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


class Client:
    """The loading side of a system, in a process of its own."""

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        """The batches of one epoch: images (float32) and labels, as tensors or arrays."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the system once before it is measured; most do nothing."""
        return None

    def close(self) -> None:
        """End processes that do not end by themselves."""
        return None


def pictures(data: str) -> list[tuple[Path, int]]:
    """Files and labels of an ImageFolder tree, in ImageFolder's order."""
    names = sorted(path.name for path in Path(data).iterdir() if path.is_dir())
    return [(file, label) for label, name in enumerate(names) for file in sorted(Path(data, name).iterdir())]
