"""A worker of programs: what it says to pipelines, and to jobs that name one."""

from __future__ import annotations

import pytest

from sophon_loader.wire.messages import CHEAPEST, Failed
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.stores import Exports
from storage_agent.workers import body
from storage_agent.workers.pipeline_jobs import PipelineJobs
from tests.unit.agent.samples import PIPELINE, file_of, job_at, sample_of

WHY = "this worker runs no named ops; it serves programs, files and parts: docs/agent.md"


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> PipelineJobs:
    monkeypatch.setattr(body, "leave_out", lambda name: None)  # of this process
    return body.pipelines_of(AgentSettings({"d": "."}, "tcp://127.0.0.1:0", 1), with_ops=False)


def test_a_pipeline_is_refused(pipelines: PipelineJobs) -> None:
    pipelines.learn("digest", PIPELINE)
    said = pipelines.register("digest").message
    assert isinstance(said, Failed) and (said.failure, said.text, said.digest) == ("bad-pipeline", WHY, "digest")


@pytest.mark.parametrize(("cut", "encoding"), [(2, "pixels"), (0, "roi-jpeg"), (3, CHEAPEST)])
def test_a_job_of_a_pipeline_gets_its_file(pipelines: PipelineJobs, exports: Exports, cut: int, encoding: str) -> None:
    job = job_at(cut, encoding)
    done = pipelines.answer(pipelines.prepare(exports, job))
    sample = sample_of(done.answer)
    assert (sample.cut, sample.encoding, sample.note) == (0, "file", WHY)
    assert done.answer.payload == file_of(exports) and not done.failed
    assert pipelines.try_out(job, done).to_tell is None


def test_a_file_that_is_missing_is_missing(pipelines: PipelineJobs, exports: Exports) -> None:
    said = pipelines.answer(pipelines.prepare(exports, job_at(2, key="a/none.jpg"))).answer.message
    assert isinstance(said, Failed) and said.failure == "missing"
