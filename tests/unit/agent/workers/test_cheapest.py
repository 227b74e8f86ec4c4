"""Answers where the choice is left to the worker: whatever it takes, the loader ends up with the same sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Reply, Wanted
from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.estimate import MIN_PROBES
from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.chain import isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.op_catalogue import _BY_CLASS, _BY_NAME
from sophon_loader.pipeline.op_registry import register_op
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.frames import content_hash, unpack
from sophon_loader.wire.messages import CHEAPEST, Failed, Sample
from storage_agent.jobs.jobs import Job
from storage_agent.workers import agent_choice
from storage_agent.workers.agent_choice import OFFERED_EVERY, OFFERED_FIRST, TRIED_FROM_CORES, Done
from storage_agent.workers.answering import BuiltPipelines
from storage_agent.workers.appraiser import FIRST_JOBS_BETWEEN, Appraiser, LoaderPrices
from storage_agent.workers.trials import SampleTrial
from tests.support.drawn import examples
from tests.support.encoding_examples import difference
from tests.support.pictures import make_tree, picture
from tests.support.workers import Parts, parts_of
from tests.unit.agent.samples import exports_of, job_at, learnt_of, registered_as, sample_of

NAMES = encoding_names()
SEED, EPOCH = 11, 2
UNTIL_KNOWN = FIRST_JOBS_BETWEEN * MIN_PROBES
"""Jobs after which a pipeline is known."""
TERMS = Terms(
    Address("tcp://127.0.0.1:1", "d", ""), OffloadOptions(), "i", (b"",), (False,), Seed(SEED), NAMES
)  # fmt: skip
TRANSFORMS: dict[str, Any] = {
    "training": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "a small part": v2.Compose([v2.RandomResizedCrop(24, scale=(0.02, 0.3)), v2.ToImage(), v2.ToDtype(torch.float32)]),
    "centre": v1.Compose([v1.CenterCrop(30), v1.ColorJitter(0.4), v1.ToTensor()]),
    "no crop": v1.Compose([v1.Resize(20), v1.RandomRotation(9), v1.ToTensor()]),
    "grey": v1.Compose([v1.RandomResizedCrop(16), v1.Grayscale(), v1.ToTensor()]),
    "flip first": v1.Compose([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(24), v1.ToTensor()]),
    "RGB first": v2.Compose([v2.RGB(), v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32)]),
    "evaluation": v1.Compose([v1.Resize(26), v1.CenterCrop(20), v1.ToTensor()]),
    "two crops": v2.Compose([v2.RandomCrop(28), v2.RandomCrop(20), v2.PILToTensor()]),
    "an image": v1.RandomResizedCrop(24),
    "nothing": None,
}
CUT = {"training", "a small part", "flip first", "RGB first", "two crops"}
"""Those that read little of most pictures."""


class Case(NamedTuple):
    """A pipeline over the tree of this module, at both ends."""

    parts: Parts
    learnt: BuiltPipelines
    digest: str


class Ends:
    """The files, and what a worker and a loader know of each pipeline."""

    def __init__(self, root: Path) -> None:
        make_tree(root / "d", files=12, classes=1, sides=(30, 140))
        folder = root / "d" / "class_0"
        picture(90, 60, 50).convert("CMYK").save(folder / "cmyk.jpg")
        picture(90, 60, 51).quantize(32).save(folder / "palette.png")
        picture(90, 60, 52).save(folder / "turned.jpg", exif=_turned(), comment=b"from a camera")
        picture(31, 200, 53).save(folder / "narrow.jpg")
        self.root = root / "d"
        self.exports = exports_of(self.root)
        self._cases: dict[str, Case] = {}

    def case(self, name: str) -> Case:
        if name not in self._cases:
            dataset = ImageFolder(str(self.root), TRANSFORMS[name])
            parts = parts_of(dataset, TERMS)
            registration = registered_as(parts.steps[0].chain)
            case = Case(parts, learnt_of(registration), content_hash(registration))
            self._cases[name] = case
            for number in range(2 * MIN_PROBES * FIRST_JOBS_BETWEEN):  # so that there is something to choose from
                self.asked(case, number // FIRST_JOBS_BETWEEN % len(dataset), trying=True)
        return self._cases[name]

    def job(self, case: Case, index: int, prices: LoaderPrices = LoaderPrices(1.0, 1.0, 1.0), **changed: Any) -> Job:  # noqa: B008
        steps = case.parts.steps[0]
        usual: dict[str, Any] = {"cut": steps.reach, "encoding": CHEAPEST, "digest": case.digest, "sample": index}
        usual |= {"seed": SEED, "epoch": EPOCH, "prices": list(prices), "key": self.key(case, index)}
        return job_at(**(usual | changed))

    def key(self, case: Case, index: int) -> str:
        return case.parts.locations.key_in_export(index)

    def asked(self, case: Case, index: int, trying: bool = False, **changed: Any) -> Done:
        """What a worker answers."""
        job = self.job(case, index, **changed)
        job = Job.from_frames(*job.frames())  # as it gets there
        with isolated(GENERATORS):
            done = case.learnt.answer(case.learnt.prepare(self.exports, job))
            if trying:
                case.learnt.try_out(job, done)
        return done


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture(scope="module", autouse=True)
def pauses() -> Iterator[list[tuple[float, float]]]:
    """When trials began and ended. None is waited for after them: jobs are counted here, and take no time."""
    taken: list[tuple[float, float]] = []
    took = Appraiser.took

    def took_no_time(self: Appraiser, began_s: float, ended_s: float) -> None:
        taken.append((began_s, ended_s))
        took(self, began_s, began_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Appraiser, "took", took_no_time)
        yield taken


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    return Ends(tmp_path_factory.mktemp("cheapest"))


def finished(case: Case, done: Done, index: int, key: str, occurrence: int = 0) -> Any:
    """The sample as the loader has it in the end."""
    message = unpack(done.answer.header)
    assert isinstance(message, Sample)
    reach = case.parts.steps[0].reach
    wanted = Wanted(0, index, reach, CHEAPEST, key, occurrence, prices=(1.0, 1.0, 1.0, 0.0))
    row = case.parts.statistics.row(0)
    row.begin(1)
    reply = Reply(wanted, 0, message, bytes(done.answer.payload or b""))
    with isolated(GENERATORS):
        value, _ = case.parts.finisher.finish(reply, EPOCH, row)
    return value


def from_file(case: Case, data: bytes, index: int, occurrence: int = 0) -> Any:
    """The sample as it is without an agent."""
    chain = case.parts.steps[0].chain
    with isolated(GENERATORS):
        return chain.run(data, 0, len(chain), case.parts.seed.draw(EPOCH, index, occurrence))


# --- the same sample ------------------------------------------------------------------------------------------

price = st.floats(0, 1e9) | st.sampled_from([0.0, 1e-9, 1e-6, 1.0, 1e9])


@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(TRANSFORMS)), index=st.integers(0, 15), prices=st.tuples(price, price, price),
    keep_info=st.booleans(), occurrence=st.integers(0, 2), furthest=st.integers(0, 64),
    allowed=st.just([*NAMES, ANY_PART]) | st.lists(st.sampled_from([*NAMES, ANY_PART]), unique=True),
)  # fmt: skip
def test_whatever_is_chosen_the_sample_is_the_same(
    ends: Ends,
    name: str,
    index: int,
    prices: tuple[float, float, float],
    keep_info: bool,
    occurrence: int,
    furthest: int,
    allowed: list[str],
) -> None:
    case = ends.case(name)
    cut = min(furthest, case.parts.steps[0].reach)
    more: dict[str, Any] = {"keep_info": keep_info, "occurrence": occurrence, "cut": cut, "allowed": allowed}
    done = ends.asked(case, index, prices=LoaderPrices(*prices), **more)
    sample = sample_of(done.answer)
    assert sample.note == "" and sample.cut <= cut and sample.encoding in {*allowed, "file"}
    assert ANY_PART in allowed or sample.encoding not in ("roi-jpeg", "roi-lepton"), (
        "this loader looks for another part"
    )
    data = ends.exports["d"].read(ends.key(case, index))
    found = finished(case, done, index, ends.key(case, index), occurrence)
    wanted = from_file(case, data, index, occurrence)
    assert difference(wanted, found) == ""
    if name in ("an image", "nothing") and keep_info:
        assert wanted.info == found.info


@pytest.mark.skipif("roi-jpeg" not in NAMES, reason="the C extension is not built")
@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_a_part_is_sent_wherever_the_pipeline_reads_one(ends: Ends, name: str) -> None:
    case, found = fresh(ends, name), set()
    for index in range(12):
        done = ends.asked(case, index, occurrence=index)
        found.add(sample_of(done.answer).encoding)
        key = ends.key(case, index)
        wanted = from_file(case, ends.exports["d"].read(key), index, index)
        assert difference(wanted, finished(case, done, index, key, index)) == ""
    assert "roi-jpeg" in found or name not in CUT
    assert found == {"file"} or name not in ("no crop", "nothing")


def test_prices_lead_to_many_choices(ends: Ends) -> None:
    """Else the test above would hold for a worker that always takes the same."""
    found, allowed = set(), ["file", "roi-jpeg", "pixels", "webp", "array", ANY_PART]
    for index in range(16):
        for prices in (
            LoaderPrices(0, 1, 0),
            LoaderPrices(1, 0, 0),
            LoaderPrices(0, 0, 1),
            LoaderPrices(1e-7, 1, 0),
            LoaderPrices(1e-9, 0, 1),
        ):
            # Of all encodings, which one is cheapest for a crop is a matter of what its CPU seconds came to just now.
            done = ends.asked(ends.case("training"), index, prices=prices, allowed=allowed)
            sample = sample_of(done.answer)
            found.add((sample.cut, sample.encoding))
    assert len(found) >= 5 and {(0, "file"), (2, "webp"), (4, "array")} <= found, found


# --- what is told ---------------------------------------------------------------------------------------------


def test_one_answer_in_some_tells_what_it_was_chosen_from(ends: Ends) -> None:
    case = ends.case("training")
    told = {id: sample_of(ends.asked(case, 1, id=id).answer) for id in range(48)}
    assert [id for id, sample in told.items() if sample.offers] == [
        id for id in told if id <= OFFERED_FIRST or id % OFFERED_EVERY == 0
    ]
    offers = told[0].offers
    assert offers[0][:2] == (0, "file") and offers[0].nbytes == told[0].file_nbytes
    assert (told[0].cut, told[0].encoding) in [(one.cut, one.encoding) for one in offers]
    assert (
        100
        < len(ends.asked(case, 1, id=0).answer.header) - len(ends.asked(case, 1, id=OFFERED_FIRST + 1).answer.header)
        < 500
    )


def test_a_choice_of_the_loader_s_own_tells_nothing_and_is_not_tried(ends: Ends) -> None:
    case = fresh(ends)
    done = ends.asked(case, 1, id=0, cut=2, encoding="pixels")
    assert sample_of(done.answer).offers == [] and done.picture is None
    assert case.learnt.try_out(ends.job(case, 1, cut=2, encoding="pixels"), done).cpu_s == 0.0


def test_seconds_and_cores_are_told(ends: Ends) -> None:
    case = ends.case("training")
    started_s = time.monotonic()
    sample = sample_of(ends.asked(case, 1, prices=LoaderPrices(0, 0, 1), cores=0.75, received_s=started_s).answer)
    most_s = time.monotonic() - started_s
    assert sample.cores == 0.75
    assert 0 < sample.read_s < most_s and 0 < sample.work_s < most_s and sample.queued_s >= 0
    assert len(sample.op_s) == sample.cut + 2


def test_a_file_that_is_cheapest_as_it_is_counts_no_work(ends: Ends) -> None:
    done = ends.asked(ends.case("training"), 1, prices=LoaderPrices(0, 1, 0))
    sample = sample_of(done.answer)
    assert (sample.cut, sample.encoding, sample.meta, len(sample.op_s)) == (0, "file", {}, 1)
    assert done.answer.payload == done.data


def test_a_dry_run_at_prices_leaves_the_payload_behind(ends: Ends) -> None:
    case = ends.case("training")
    wet, dry = (ends.asked(case, 1, prices=LoaderPrices(1, 0, 0), dry=dry) for dry in (False, True))
    assert dry.answer.payload == b"" and sample_of(dry.answer).meta["nbytes"] == len(wet.answer.payload or b"")


# --- trials ---------------------------------------------------------------------------------------------------


def fresh(ends: Ends, name: str = "training") -> Case:
    """A case whose worker has not tried anything."""
    case = ends.case(name)
    return case._replace(learnt=learnt_of(registered_as(case.parts.steps[0].chain)))


def test_before_anything_is_known_nothing_is_weighed(ends: Ends) -> None:
    case = fresh(ends)
    for index in range(16):
        sample = sample_of(ends.asked(case, index, id=0, prices=LoaderPrices(1, 0, 0)).answer)
        assert sample.cut == 0 and sample.encoding in ("file", "roi-jpeg") and sample.offers == []
        assert sample.note == ""


def test_a_few_trials_are_enough(ends: Ends) -> None:
    case = fresh(ends)
    for number in range(UNTIL_KNOWN):
        assert sample_of(ends.asked(case, number % 16, id=0, trying=True).answer).offers == []
    assert sample_of(ends.asked(case, 0, id=0).answer).offers != []


def test_a_trial_changes_nothing(ends: Ends) -> None:
    case = fresh(ends)
    done = ends.asked(case, 2)
    before = (done.answer.header, bytes(done.answer.payload or b""), done.data)
    job = ends.job(case, 2)
    with isolated(GENERATORS):
        assert sum(case.learnt.try_out(job, done).cpu_s for _ in range(FIRST_JOBS_BETWEEN)) > 0
    assert (done.answer.header, bytes(done.answer.payload or b""), done.data) == before
    again = ends.asked(case, 2)
    assert again.answer.payload == done.answer.payload, "one trial alone decides nothing"


@pytest.mark.parametrize(("keep_info", "allowed", "cuts"), [
    (False, ["file", "roi-jpeg", ANY_PART], True),
    (True, ["file", "roi-jpeg", ANY_PART], True),
    (False, ["file", "roi-jpeg"], False),
    (False, ["file", "webp", ANY_PART], False),
])  # fmt: skip
def test_what_the_loader_must_not_get_cut_is_not_cut_on_trial(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, keep_info: bool, allowed: list[str], cuts: bool
) -> None:
    case = fresh(ends)
    done, job = ends.asked(case, 2), ends.job(case, 2, keep_info=keep_info, allowed=allowed)
    seen: list[bool] = []

    def noted(*_: Any, cuts: bool) -> SampleTrial:
        seen.append(cuts)
        raise ValueError("no trial is needed")

    monkeypatch.setattr(agent_choice, "tried", noted)
    for _ in range(FIRST_JOBS_BETWEEN):
        case.learnt.try_out(job, done)
    assert seen == [cuts]


def test_trials_become_rare(ends: Ends, pauses: list[tuple[float, float]]) -> None:
    case = fresh(ends)
    done, job = ends.asked(case, 2), ends.job(case, 2)
    pauses.clear()
    with isolated(GENERATORS):
        took = [case.learnt.try_out(job, done).cpu_s for _ in range(UNTIL_KNOWN + 250)]
    assert all(seconds > 0 for seconds in took[FIRST_JOBS_BETWEEN - 1 : UNTIL_KNOWN : FIRST_JOBS_BETWEEN])
    assert sum(seconds > 0 for seconds in took) == MIN_PROBES + 1 + 4, "after 8, 16, 32, 64 and 128 more"
    assert len(pauses) == MIN_PROBES + 5 and all(began_s < ended_s for began_s, ended_s in pauses)


def test_a_trial_is_for_other_workers_to_know_but_for_the_first(ends: Ends, pauses: list[tuple[float, float]]) -> None:
    """That loads libraries. Of many workers each makes one; were those told, most of what is known would be wrong."""
    case = fresh(ends)
    done, job = ends.asked(case, 2), ends.job(case, 2)
    with isolated(GENERATORS):
        made = [one for one in (case.learnt.try_out(job, done) for _ in range(UNTIL_KNOWN)) if one.cpu_s]
    assert [one.to_tell is not None for one in made] == [False] + [True] * (MIN_PROBES - 1)
    told = made[1].to_tell
    assert told is not None and SampleTrial.from_bytes(told.to_bytes()) == told and "webp" in told.lacking


@pytest.mark.parametrize("dry", [False, True])
def test_what_is_sent_is_learnt_from(ends: Ends, monkeypatch: pytest.MonkeyPatch, dry: bool) -> None:
    """Unless nothing is: a dry run's payload stays here."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Appraiser, "saw", lambda self, *told: seen.append(told))
    done = ends.asked(ends.case("training"), 1, prices=LoaderPrices(1, 0, 0), allowed=["webp"], dry=dry)
    job = ends.job(ends.case("training"), 1)
    with isolated(GENERATORS):
        ends.case("training").learnt.try_out(job, done)
    sent = [(done.picture, 2, "webp", len(done.answer.payload or b""), sample_of(done.answer).op_s[-1])]
    assert seen == ([] if dry else sent)


def test_an_agent_with_next_to_no_cpu_tries_nothing(ends: Ends) -> None:
    case = fresh(ends)
    done = ends.asked(case, 2)
    few, enough = (ends.job(case, 2, per_worker=cores) for cores in (0.9 * TRIED_FROM_CORES, TRIED_FROM_CORES))
    with isolated(GENERATORS):
        assert sum(case.learnt.try_out(few, done).cpu_s for _ in range(FIRST_JOBS_BETWEEN)) == 0.0
        assert sum(case.learnt.try_out(enough, done).cpu_s for _ in range(FIRST_JOBS_BETWEEN)) > 0.0


def test_another_pipeline_is_another_matter(ends: Ends) -> None:
    case = fresh(ends)
    for number in range(UNTIL_KNOWN):
        ends.asked(case, number % 16, trying=True)
    other = registered_as(ends.case("grey").parts.steps[0].chain)
    case.learnt.learn(content_hash(other), other)
    assert case.learnt.appraiser(case.digest).knows and not case.learnt.appraiser(content_hash(other)).knows
    case.learnt.forget(case.digest)
    case.learnt.learn(case.digest, registered_as(case.parts.steps[0].chain))
    assert not case.learnt.appraiser(case.digest).knows, "what is forgotten is learnt anew"
    with pytest.raises(PipelineError):
        case.learnt.appraiser("0" * 32)


# --- what fails -----------------------------------------------------------------------------------------------


class Moody:
    """An op that fails on wide pictures, and when it is told to."""

    fails = False

    def __call__(self, value: Image.Image) -> Image.Image:
        if self.fails:
            raise ValueError("the image is too dark")
        return value


@pytest.fixture
def moody(ends: Ends) -> Any:
    register_op("tests.Moody", Moody, draws=())
    TRANSFORMS["moody"] = v1.Compose([v1.RandomResizedCrop(24), Moody(), v1.ToTensor()])
    try:
        yield ends.case("moody")
    finally:
        Moody.fails = False
        ends._cases.pop("moody", None)
        del _BY_NAME["tests.Moody"], _BY_CLASS[Moody], TRANSFORMS["moody"]


def test_an_op_that_fails_gives_the_file_and_a_note(ends: Ends, moody: Case) -> None:
    assert sample_of(ends.asked(moody, 3, prices=LoaderPrices(0, 0, 1)).answer).cut == 4
    Moody.fails = True
    done = ends.asked(moody, 3, id=0, prices=LoaderPrices(0, 0, 1))
    sample = sample_of(done.answer)
    assert (sample.cut, sample.encoding, sample.offers) == (0, "file", [])
    assert done.answer.payload == ends.exports["d"].read(ends.key(moody, 3))
    assert "the image is too dark" in sample.note and "tests.Moody" in sample.note
    assert done.picture is None and moody.learnt.try_out(ends.job(moody, 3), done).cpu_s == 0.0


def test_an_op_that_fails_on_trial_only_leaves_the_answer_as_it_is(ends: Ends, moody: Case) -> None:
    case = moody._replace(learnt=learnt_of(registered_as(moody.parts.steps[0].chain)))
    Moody.fails = True
    for number in range(60):
        done = ends.asked(case, number % 16, trying=True)
        assert sample_of(done.answer).note == "" and sample_of(done.answer).cut == 0
    assert not case.learnt.appraiser(case.digest).knows


@pytest.mark.parametrize("prices", [LoaderPrices(1, 0, 0), LoaderPrices(0, 0, 1), LoaderPrices(0, 1, 0)])
def test_a_file_that_is_no_picture_goes_out_as_it_is(ends: Ends, prices: LoaderPrices) -> None:
    broken = ends.root / "broken.jpg"
    broken.write_bytes(b"\xff\xd8 no more")
    for case in (ends.case("training"), fresh(ends)):
        done = ends.asked(case, 0, key="broken.jpg", prices=prices, trying=True)
        assert (sample_of(done.answer).cut, sample_of(done.answer).encoding) == (0, "file")
        assert done.answer.payload == broken.read_bytes()


def test_a_file_that_is_not_there(ends: Ends) -> None:
    done = ends.asked(ends.case("training"), 0, key="none.jpg", trying=True)
    assert isinstance(done.answer.message, Failed) and done.answer.message.failure == "missing"


def test_a_worker_of_other_software_sends_what_may_be_sent(ends: Ends) -> None:
    """Its reach is 0: the file, or the part of it where its JPEG library alone is another one."""
    case = ends.case("training")
    for name in ("torch", "libjpeg"):
        registration = registered_as(case.parts.steps[0].chain, **{name: "another"})
        other = case._replace(learnt=learnt_of(registration), digest=content_hash(registration))
        for number in range(2 * UNTIL_KNOWN):
            done = ends.asked(other, number % 16, prices=LoaderPrices(1, 0, 0.001), trying=True)
            assert sample_of(done.answer).cut == 0
            key = ends.key(case, number % 16)
            wanted = from_file(case, ends.exports["d"].read(key), number % 16)
            assert difference(wanted, finished(case, done, number % 16, key)) == ""


def test_a_pipeline_that_was_never_sent_gives_the_file(ends: Ends) -> None:
    case = replace_digest(ends.case("training"))
    sample = sample_of(ends.asked(case, 0).answer)
    assert (sample.cut, sample.encoding) == (0, "file") and "PipelineError" in sample.note


def replace_digest(case: Case) -> Case:
    return case._replace(digest="0" * 32)


def test_exports_are_read_once_per_job(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial works on the file that was read for the answer."""
    reads: list[str] = []
    read = type(ends.exports["d"]).read

    def counting(self: Any, key: str) -> bytes:
        reads.append(key)
        return read(self, key)

    monkeypatch.setattr(type(ends.exports["d"]), "read", counting)
    ends.asked(fresh(ends), 2, trying=True)
    assert len(reads) == 1
