"""What the tests of a worker's and a reader's answers share: jobs, pipelines, and what is said to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2

from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.limits import MAX_TEXT_LENGTH
from sophon_loader.wire.messages import Item, Sample
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.reading.answers import Answer
from storage_agent.stores import Exports
from storage_agent.stores.buckets.fetcher import Fetcher
from storage_agent.stores.folder import Folder
from storage_agent.workers.answering import BuiltPipelines

TRANSFORM = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)])
CHAIN = chain_of(TRANSFORM)
ODD = "\U000e0001" * MAX_TEXT_LENGTH


def registered_as(chain: Chain, **others: str) -> bytes:
    """What a loader with this software, but for `others`, registers."""
    return registration_of(chain, {**software(), **others})


PIPELINE = registered_as(CHAIN)


def exports_of(root: Path) -> Exports:
    return Exports({"d": Folder("d", str(root), 1 << 20)}, Fetcher())


def learnt_of(registration: bytes) -> BuiltPipelines:
    learnt = BuiltPipelines()
    learnt.learn(content_hash(registration), registration)
    return learnt


def answer_job(exports: Exports, job: Job, registration: bytes) -> Answer:
    """What a worker that has been sent the registration answers."""
    header = replace(job.fetch, digest=content_hash(registration))
    learnt = learnt_of(registration)
    return learnt.answer(learnt.prepare(exports, replace(job, fetch=header))).answer


def register(registration: bytes) -> Answer:
    """What a worker says to a registration."""
    return learnt_of(registration).register(content_hash(registration))


def job_at(cut: int, encoding: str = "array", **changed: Any) -> Job:
    place = (changed.pop("id", 7), changed.pop("sample", 3), changed.pop("occurrence", 0))
    item = Item(*place, cut, encoding, changed.pop("key", "a/x.jpg"))
    whole: dict[str, Any] = {
        "client": b"c", "export": "d", "digest": "", "seed": 11, "epoch": 2, "keep_info": False, "dry": False,
        "allowed": [*encoding_names(), ANY_PART], "received_s": 0.0, "upkeep_s": 0.0,
    }  # fmt: skip
    return Job(FetchHeader(**(whole | changed)), item)


def sample_of(answer: Answer) -> Sample:
    assert isinstance(answer.message, Sample)
    return answer.message


def file_of(exports: Exports, key: str = "a/x.jpg") -> bytes:
    return exports["d"].read(key)
