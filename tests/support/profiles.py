"""Profiles and probes with known numbers, for the tests of profiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.plans.calibration import Calibration, calibrated
from sophon_loader.plans.probes import Probe
from sophon_loader.plans.profiler import Profiler

CROPPED_NBYTES = 96 * 96 * 3

SHARES = {index: 0.1 + 0.035 * index for index in range(24)}
"""What the first crop reads of each picture of `photo_profile`."""


def photo_profile(samples: int = 24, seed: int = 0) -> SampleProfile:
    """Decode, crop, flip, to tensor: sizes and times like those of photographs."""
    rng = np.random.default_rng(seed)
    profile = SampleProfile(samples, 4)
    sides = rng.integers(200, 900, (samples, 2))
    px = sides.prod(axis=1)
    file_nbytes = (px * rng.uniform(0.15, 0.6, samples)).astype(int)
    cropped = np.full(samples, CROPPED_NBYTES)
    profile.sides[:] = sides
    profile.op_ms[:] = np.stack([px / 50_000, px / 90_000, np.full(samples, 0.1), np.full(samples, 0.3)], axis=1)
    profile.nbytes[:] = np.stack([file_nbytes, 3 * px, cropped, cropped, 4 * cropped], axis=1)
    return profile


def photo_probes(profile: SampleProfile, shares: dict[int, float]) -> list[Probe]:
    """What an agent twice as slow as the loader would answer; parts take share * file + 700 bytes."""
    probes = []
    for index, share in shares.items():
        op_s = [2 * float(ms) / 1000 for ms in profile.op_ms[index]]
        file_nbytes = int(profile.nbytes[index, 0])
        probes.append(Probe(index, 4, "array", int(profile.nbytes[index, 4]), (0.0002, *op_s, 0.0005)))
        part = round(0.9 * share * file_nbytes + 700)
        probes.append(Probe(index, 0, "roi-jpeg", part, (0.0002, file_nbytes * 2e-9)))
        webp = round(0.5 * CROPPED_NBYTES)
        probes.append(Probe(index, 2, "webp", webp, (0.0002, op_s[0], op_s[1], 0.002)))
    return probes


def crop_transform(px: int = 16) -> Any:
    """A pipeline of four ops, decode included."""
    return v1.Compose([v1.RandomResizedCrop(px), v1.RandomHorizontalFlip(), v1.ToTensor()])


def profiler_of(
    root: Path,
    path: Path | None = None,
    transforms: tuple[Any, ...] = (None,),
    port: int = 1,
    stage_one_steps: int = 0,
    **changes: Any,
) -> Profiler:
    """A profiler that has agreed with an agent where nobody listens."""
    parts = [ImageFolder(str(root), crop_transform() if one is None else one) for one in transforms]
    data = offloadable(parts[0] if len(parts) == 1 else ConcatDataset(parts))
    chains = tuple(chain_of(part.transform) for part in parts)
    reach = tuple(chain.describable for chain in chains)
    terms = Terms(
        address=Address(f"tcp://127.0.0.1:{port}", "local"),
        options=OffloadOptions(dead_after_s=0.5),
        instance="i",
        registrations=tuple(registration_of(chain, software()) for chain in chains),
        keep_info=tuple(bool(chain.local_ops) for chain in chains),
        seed=Seed(1),
        allowed=encoding_names(),
    )
    arguments: dict[str, Any] = {
        "reach": reach,
        "agent_cores": 1.0,
        "encodings": encoding_names(),
        "notes": (),
        "agent": "local",
    } | changes
    agreement = Agreement(terms, Locations(data, terms.address), **arguments)
    return Profiler(data, chains, agreement, 1, path, stage_one_steps=stage_one_steps)


def fill(profiler: Profiler, file_nbytes: int = 5000) -> None:
    """Give every sample a profile of plain numbers."""
    samples = profiler.samples
    samples.sides[:] = (40, 30)
    samples.op_ms[:] = 1.5
    samples.nbytes[:, 1:] = 3000
    samples.nbytes[:, 0] = file_nbytes + np.arange(len(samples.nbytes))


def calibration_of(profile: SampleProfile, probes: list[Probe] | None = None) -> Calibration:
    """What `photo_probes`, or others, say of `photo_profile`."""
    found = photo_probes(profile, SHARES) if probes is None else probes
    return calibrated(profile, found, SHARES, 0.004, crops_first=True)
