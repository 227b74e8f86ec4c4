"""What a worker knows of the choices of a sample, how it learns that, and which it takes at which prices."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import MIN_PROBES, UsedAt
from sophon_loader.encodings.registry import encodings, used_at
from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.source import PictureFile
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.described import Begun, begin_on_size
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.wire.messages import Offer
from storage_agent.workers.answering import look_at, stages_of
from storage_agent.workers.appraiser import (
    FIRST_JOBS_BETWEEN,
    KEPT_TRIALS,
    MOST_JOBS_BETWEEN,
    MOST_LACKING,
    SENT_BETWEEN_FITS,
    Appraiser,
    LoaderPrices,
    cheapest,
    unproven,
)
from storage_agent.workers.trials import KnownPicture, SampleTrial, tried
from tests.support.drawn import examples
from tests.support.pictures import picture

NAMES = encoding_names()
FITTED = [name for name in NAMES if name not in ("file", "pixels", "array")]
"""Those whose sizes must be found by trying."""
WHOLE = tuple(name for name in NAMES if name == "lepton")
"""Those that take a whole JPEG file."""
CHAIN = chain_of(v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()]))
"""Decode, crop, flip, tensor: an image up to stage 3, resized from 2 on."""
DRAW = Draw(1, 2, 3)
needs_crop = pytest.mark.skipif("roi-jpeg" not in NAMES, reason="the C extension is not built")


def file_of(image: Image.Image, format: str = "JPEG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **how)
    return out.getvalue()


PHOTO = file_of(picture(120, 90, 1))


def looked_at(data: bytes, chain: Chain = CHAIN, draw: Draw = DRAW) -> KnownPicture:
    with chain.isolated():
        return look_at(data, chain, draw)


# --- what is told of a file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "how", "can_be_cut"),
    [("RGB", {}, True), ("L", {}, True), ("CMYK", {}, False), ("RGB", {"progressive": True}, False)],
)
@needs_crop
def test_a_jpeg_file(mode: str, how: dict[str, Any], can_be_cut: bool) -> None:
    data = file_of(picture(120, 90, 1).convert(mode), **how)
    found = looked_at(data)
    assert (found.nbytes, found.px, found.can_be_cut, found.taken_by) == (len(data), 120 * 90, can_be_cut, WHOLE)
    with CHAIN.isolated():
        assert found.share == begin_on_size(CHAIN, 120, 90, DRAW).share < 1


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP"])
def test_of_a_picture_that_is_no_jpeg_a_part_is_read_and_none_is_cut(format: str) -> None:
    data = file_of(picture(120, 90, 1), format)
    found = looked_at(data)
    assert (found.nbytes, found.px, found.can_be_cut, found.taken_by) == (len(data), 10_800, False, ())
    assert found.begun is not None and found.share < 1


@pytest.mark.parametrize(
    "data", [b"", b"no picture", b"\xff\xd8 no more", PHOTO[:8], file_of(picture(9, 9, 1), "PNG")[:20]]
)
def test_broken_bytes_are_no_picture(data: bytes) -> None:
    assert looked_at(data) == KnownPicture(len(data), 0, None)
    assert looked_at(data).share == 1.0 and not looked_at(data).can_be_cut


def test_without_a_crop_a_picture_is_read_whole() -> None:
    found = looked_at(PHOTO, chain_of(v1.Compose([v1.Resize(8), v1.ToTensor()])))
    assert (found.nbytes, found.px, found.taken_by) == (len(PHOTO), 10_800, WHOLE)
    assert (found.share, found.can_be_cut) == (1.0, False)


def test_features_of_a_picture() -> None:
    found = sample(share=0.25).facts.features(768)
    assert (found.file_nbytes, found.value_nbytes, found.px, found.share) == (20_000, 768, 30_000, 0.25)
    assert found.part_nbytes == 5000


# --- trials ---------------------------------------------------------------------------------------------------


def trial_of(
    data: bytes = PHOTO, names: Sequence[str] = FITTED, chain: Chain = CHAIN, cuts: bool = True
) -> SampleTrial:
    with chain.isolated():
        return tried(data, look_at(data, chain, DRAW), stages_of(chain, DRAW), names, cuts=cuts)


def test_a_trial_takes_a_sample_through_the_whole_pipeline() -> None:
    found = trial_of()
    assert found.file == looked_at(PHOTO).facts
    assert found.nbytes == (120 * 90 * 3, 768, 768, 768 * 4)
    assert found.plain == ("pixels", "pixels", "pixels", "array")
    assert len(found.op_s) == 4 and all(seconds >= 0 for seconds in found.op_s)
    for name, (nbytes, encoded, seconds) in found.encoded.items():
        of_file = used_at(name) is not UsedAt.RESIZED
        assert nbytes == (len(PHOTO) if of_file else 768) and encoded > 0 and seconds >= 0
    not_cut = set() if "roi-jpeg" in NAMES else set(WHOLE)
    assert set(found.encoded) == set(FITTED) - set(WHOLE) | not_cut, "of a part there is less to encode"


def test_only_what_is_asked_for_is_encoded() -> None:
    assert set(trial_of(names=["webp"]).encoded) == {"webp"}
    assert trial_of(names=[]).encoded == {}


@pytest.mark.parametrize(("data", "cuts"), [
    (file_of(picture(120, 90, 1), "PNG"), True),
    (file_of(picture(120, 90, 1), progressive=True), True),
    (PHOTO, False),
], ids=["png", "progressive", "not wanted"])  # fmt: skip
def test_a_file_that_is_not_cut_is_encoded_whole_on_trial(data: bytes, cuts: bool) -> None:
    found = trial_of(data, cuts=cuts).encoded
    assert {"roi-jpeg", "roi-lepton"}.isdisjoint(found)
    assert ("lepton" in found) == (data[:2] == PHOTO[:2] and bool(WHOLE)), "that is not cut"


def test_a_value_that_no_encoding_takes_cannot_cross() -> None:
    chain = chain_of(v1.Compose([v1.CenterCrop(16), v1.TenCrop(8)]))
    found = trial_of(chain=chain)
    assert found.nbytes[-1] == 0 and found.plain == ("pixels", "pixels", "")


def test_an_encoding_that_fails_is_left_out_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(value: Any) -> Encoded:
        raise ValueError("out of order")

    monkeypatch.setattr(encodings()["webp"], "encode", fails)
    found = trial_of()
    assert "webp" not in found.encoded and found.nbytes[-1] == 768 * 4


# --- when to try ----------------------------------------------------------------------------------------------


def due_at(appraiser: Appraiser, jobs: int, fails: bool = False) -> list[int]:
    """The jobs, by number, whose samples are tried."""
    found = []
    for number in range(jobs):
        if appraiser.due(number):
            found.append(number)
            appraiser.failed() if fails else appraiser.learn(hand_made(number))
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_one_sample_in_four_is_tried_at_first_and_one_in_512_later(fails: bool) -> None:
    """Also where no trial comes to its end, so that a broken op does not double the work for ever."""
    found = due_at(Appraiser(4, 4, 2), 5000, fails)
    assert found[0] == FIRST_JOBS_BETWEEN - 1, "the first answers are waited for"
    gaps = [after - before for before, after in pairwise(found)]
    assert gaps[:MIN_PROBES] == [FIRST_JOBS_BETWEEN] * MIN_PROBES
    assert gaps[MIN_PROBES : MIN_PROBES + 8] == [8, 16, 32, 64, 128, 256, 512, 512]
    assert set(gaps[MIN_PROBES + 7 :]) == {MOST_JOBS_BETWEEN} and len(found) < 40


def test_trials_that_failed_make_no_later_ones_rarer_while_nothing_is_known() -> None:
    """A folder may begin with pictures that are too large for the agent."""
    appraiser = Appraiser(4, 4, 2)
    due_at(appraiser, 5000, fails=True)
    found = due_at(appraiser, 5000)
    gaps = [after - before for before, after in pairwise(found)]
    assert gaps[: MIN_PROBES - 1] == [FIRST_JOBS_BETWEEN] * (MIN_PROBES - 1)
    assert gaps[-1] == MOST_JOBS_BETWEEN


def test_after_a_trial_jobs_have_as_long_as_it_took() -> None:
    """A batch that is waited for comes out between the first trials."""
    appraiser = Appraiser(4, 4, 2)
    assert [appraiser.due(0.0) for _ in range(FIRST_JOBS_BETWEEN)].index(True) == FIRST_JOBS_BETWEEN - 1
    appraiser.took(10.0, 10.5)
    assert not any(appraiser.due(10.5 + 0.01 * number) for number in range(49))
    assert appraiser.due(11.0)


def test_all_encodings_are_tried_at_first_and_one_at_a_time_later() -> None:
    appraiser = Appraiser(4, 4, 2)
    seen = []
    for number in range(MIN_PROBES + 2 * len(FITTED)):
        seen.append(appraiser.names(NAMES))
        appraiser.learn(hand_made(number, FITTED))
    assert seen[:MIN_PROBES] == [FITTED] * MIN_PROBES
    assert sorted(name for (name,) in seen[MIN_PROBES:]) == sorted(2 * FITTED)
    assert appraiser.names(["file", "pixels"]) == [] and appraiser.names(["webp"]) == ["webp"]


def test_what_the_first_trials_have_not_shown_is_tried_on() -> None:
    """One of the first eight files was not cut, so seven rows tell of cutting: for seconds nothing was cut."""
    appraiser = Appraiser(4, 4, 2)
    for number in range(MIN_PROBES):
        appraiser.learn(hand_made(number, ["webp"] if number == 3 else ["roi-jpeg", "webp"]))
    assert (0, "roi-jpeg") not in by_choice(offers_of(appraiser))
    assert appraiser.names(["roi-jpeg", "webp"]) == ["roi-jpeg", "webp"], "webp is known, and its turn"
    appraiser.learn(hand_made(MIN_PROBES, ["roi-jpeg"]))
    assert (0, "roi-jpeg") in by_choice(offers_of(appraiser))
    assert {*map(tuple, (appraiser.names(["roi-jpeg", "webp"]) for _ in range(3)))} < {("roi-jpeg",), ("webp",)}


@needs_crop
def test_a_sample_that_can_tell_what_is_lacking_is_tried_at_once() -> None:
    """One file of fifty can be cut: what cutting takes would be known after thousands of jobs."""
    appraiser, jobs = Appraiser(4, 4, 2), 0
    names, whole, rare = ["roi-jpeg", "webp"], sample(can_be_cut=False), sample()
    while (0, "roi-jpeg") not in by_choice(offers_of(appraiser)):
        jobs += 1
        seen = whole if jobs % 50 else rare
        if appraiser.due(jobs, appraiser.lacks(seen, names, cuts=True)):
            appraiser.learn(hand_made(jobs, names if seen.can_be_cut else ["webp"]))
    assert 50 * MIN_PROBES <= jobs <= 50 * (MIN_PROBES + 2)
    assert appraiser.lacks(rare, names, cuts=True) == []


@pytest.mark.parametrize(
    ("changed", "cuts", "lacking"),
    [
        ({}, True, {"roi-jpeg", "webp"}),
        ({}, False, {"lepton", "webp"}),
        ({"can_be_cut": False}, True, {"lepton", "webp"}),
        ({"can_be_cut": False, "taken_by": ()}, True, {"webp"}),
    ],
)
def test_what_a_sample_can_tell(changed: dict[str, Any], cuts: bool, lacking: set[str]) -> None:
    appraiser, names = Appraiser(4, 4, 2), {"roi-jpeg", "lepton", "webp"} & {*NAMES}
    assert {*appraiser.lacks(sample(**changed), names, cuts=cuts)} == lacking & names


def test_what_no_trial_tells_does_not_double_the_work_for_ever() -> None:
    appraiser, found = Appraiser(4, 4, 2), []
    for number in range(3000):
        lacking = tuple(appraiser.lacks(sample(), ["webp"], cuts=True))
        if appraiser.due(number, lacking):
            found.append(number)
            appraiser.learn(replace(hand_made(number, ["roi-jpeg"]), lacking=lacking))  # webp takes none of them
    assert found[MOST_LACKING - 1] == FIRST_JOBS_BETWEEN * MOST_LACKING - 1
    assert len(found) < MOST_LACKING + 12


def test_trials_of_other_workers_count_like_its_own() -> None:
    """With ten workers each made eight trials: for hundreds of samples nothing was known."""
    appraiser = Appraiser(4, 4, 2)
    lacking = appraiser.lacks(sample(), ["webp"], cuts=True)
    for number in range(MIN_PROBES):
        assert not any(appraiser.due(0.0, lacking) for _ in range(FIRST_JOBS_BETWEEN - 1))
        appraiser.learn(SampleTrial.from_bytes(hand_made(number).to_bytes()))
    assert_near(by_choice(offers_of(appraiser)), BY_HAND)
    assert due_at(appraiser, 5000) == due_at(appraiser_of(), 5000), "and its own are as rare as after as many"


def test_what_no_worker_can_tell_is_not_tried_by_each_of_them() -> None:
    appraiser = Appraiser(4, 4, 2)
    for number in range(MOST_LACKING):
        assert appraiser.lacks(sample(), ["webp"], cuts=True) == ["webp"]
        trial = replace(hand_made(number, ["roi-jpeg"]), lacking=("webp",))  # webp takes none of them
        appraiser.learn(SampleTrial.from_bytes(trial.to_bytes()))
    assert appraiser.lacks(sample(), ["webp"], cuts=True) == []


def test_many_trials_at_once_are_taken_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit takes 0.4 ms, and other workers may tell of dozens of trials between two samples."""
    fitted: list[str] = []
    monkeypatch.setattr(Appraiser, "_fit", lambda self, name, known: fitted.append(name))
    appraiser = appraiser_of(trials=KEPT_TRIALS)
    assert fitted == []
    assert offers_of(appraiser) != [] and sorted(fitted) == ["roi-jpeg", "webp"]


def test_nothing_is_known_before_enough_trials() -> None:
    appraiser = Appraiser(4, 4, 2)
    for number in range(MIN_PROBES):
        assert not appraiser.knows and offers_of(appraiser) == []
        appraiser.failed()  # which teaches nothing
        appraiser.learn(hand_made(number))
    assert appraiser.knows and offers_of(appraiser) != []


def test_what_an_encoding_takes_stays_known_though_it_is_tried_rarely() -> None:
    """Where few files can be cut, most trials of the newest ones do not say what cutting takes."""
    appraiser = appraiser_of()
    before = by_choice(offers_of(appraiser))
    for number in range(2 * KEPT_TRIALS):
        appraiser.learn(hand_made(number, names=()))
    assert by_choice(offers_of(appraiser)).keys() == before.keys()


def sent(appraiser: Appraiser, samples: int, name: str = "webp", cut: int = 2, nbytes: int = 900) -> None:
    """So many samples have gone out in an encoding, each in so many bytes and 4 ms."""
    for number in range(samples):
        appraiser.saw(pictured(number), cut, name, nbytes, 0.004)


def test_what_an_encoding_takes_is_learnt_from_what_goes_out_in_it() -> None:
    """Of 8 trials the fit is far off for the samples for which it is chosen."""
    appraiser = appraiser_of()
    assert by_choice(offers_of(appraiser))[2, "webp"][0] == 600
    sent(appraiser, SENT_BETWEEN_FITS - 1)
    assert by_choice(offers_of(appraiser))[2, "webp"][0] == 600, "a fit for every sample would cost more than it gains"
    sent(appraiser, 4 * SENT_BETWEEN_FITS)
    nbytes, agent_s, _ = by_choice(offers_of(appraiser))[2, "webp"]
    assert 850 < nbytes < 910
    assert agent_s - by_choice(offers_of(appraiser))[2, "pixels"][1] == pytest.approx(0.0038, rel=0.03)


def test_what_goes_out_does_not_outweigh_trials_for_ever() -> None:
    """A sample for which the encoding is not chosen is not like those for which it is."""
    appraiser = appraiser_of(trials=KEPT_TRIALS)
    sent(appraiser, 20 * KEPT_TRIALS, nbytes=1000)
    assert by_choice(offers_of(appraiser))[2, "webp"][0] == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(("cut", "name"), [(0, "file"), (2, "pixels"), (3, "webp"), (0, "webp"), (2, "roi-jpeg")])
def test_nothing_is_learnt_from_what_is_no_estimate(cut: int, name: str) -> None:
    appraiser = appraiser_of()
    before = by_choice(offers_of(appraiser))
    sent(appraiser, 4 * SENT_BETWEEN_FITS, name, cut)
    assert by_choice(offers_of(appraiser)) == before
    untried = Appraiser(4, 4, 2)
    sent(untried, 4 * SENT_BETWEEN_FITS)
    assert offers_of(untried) == []


# --- what choices take, by hand -------------------------------------------------------------------------------
#
# Trials of pictures whose decoding takes 1e-7 s per px and 2e-7 s per byte; then 1 ms, 0.5 ms and 0.2 ms for the other
# ops. `roi-jpeg` makes 0.9 x the bytes that fall to the share + 300, at 1e-8 s per byte of the file; `webp` always 600
# bytes in 2 ms.

OPS_S = (0.001, 0.0005, 0.0002)


def hand_made(number: int, names: Sequence[str] = ("roi-jpeg", "webp")) -> SampleTrial:
    nbytes, px, share = file = pictured(number).facts
    encoded = {
        "roi-jpeg": (nbytes, round(0.9 * nbytes * share + 300), 1e-8 * nbytes),
        "webp": (768, 600, 0.002),
        "lepton": (nbytes, round(0.8 * nbytes + 200), 1.5e-7 * nbytes),
    }
    encoded = dict.fromkeys(FITTED, encoded["webp"]) | encoded
    op_s = (1e-7 * px + 2e-7 * nbytes, *OPS_S)
    sizes, plain = (3 * px, 768, 768, 3072), ("pixels", "pixels", "pixels", "array")
    return SampleTrial(file, op_s, sizes, plain, {name: encoded[name] for name in names})


def pictured(number: int) -> KnownPicture:
    """One of many, as a trial made by hand has it."""
    px, nbytes = 10_000 + 700 * (number % 64), 5000 + 1300 * (number * number % 17)
    return sample(nbytes=nbytes, px=px, share=0.1 + 0.05 * (number % 7))


def sample(
    nbytes: int = 20_000,
    px: int = 30_000,
    share: float = 0.25,
    can_be_cut: bool = True,
    taken_by: tuple[str, ...] = WHOLE,
) -> KnownPicture:
    """A picture of which a share is read: 200 x 150 px and a quarter, unless told otherwise."""
    return KnownPicture(nbytes, px, begun_at(share, can_be_cut), taken_by)


def begun_at(share: float, can_be_cut: bool = True) -> Begun:
    """A pipeline that reads such a share of its picture."""
    source = PictureFile(b"", Shape(1, 1000, "RGB"), can_be_cut=can_be_cut)
    image = deferred(source).crop((0, 0, 1, round(1000 * share)))
    assert isinstance(image, Deferred)
    return Begun(source, image.steps, 2, image)


def appraiser_of(chain: Chain = CHAIN, reach: int = 4, trials: int = MIN_PROBES) -> Appraiser:
    appraiser = Appraiser(len(chain), reach, chain.resize_cut)
    for number in range(trials):
        appraiser.learn(hand_made(number))
    return appraiser


def offers_of(
    appraiser: Appraiser,
    picture: KnownPicture | None = None,
    allowed: Sequence[str] = NAMES,
    furthest: int = 64,
) -> list[Offer]:
    return appraiser.offers(picture or sample(), allowed, furthest=furthest)


def by_choice(offers: Sequence[Offer]) -> dict[tuple[int, str], tuple[int, float, float]]:
    found = {(one.cut, one.encoding): (one.nbytes, one.agent_s, one.rest_s) for one in offers}
    assert len(found) == len(offers), "each choice once"
    return found


WHOLE_S = 0.003 + 0.004
PART_S = WHOLE_S * (0.25 + 0.05 + 0.27)
"""Decoding a quarter: cut out of the bitstream first."""
BY_HAND = {
    (0, "file"): (20_000, 0.0, PART_S + 0.0017),
    (0, "roi-jpeg"): (4800, 0.0002, WHOLE_S * (0.25 + 0.05) + 0.0017),
    (1, "pixels"): (90_000, WHOLE_S, 0.0017),
    (2, "pixels"): (768, PART_S + 0.001, 0.0007),
    (2, "webp"): (600, PART_S + 0.003, 0.0007 + 0.54 * 0.002),
    (3, "pixels"): (768, PART_S + 0.0015, 0.0002),
    (4, "array"): (3072, PART_S + 0.0017, 0.0),
}


def assert_near(found: Mapping[Any, tuple[float, ...]], wanted: Mapping[Any, tuple[float, ...]]) -> None:
    assert found.keys() == wanted.keys()
    for choice, costs in wanted.items():
        assert found[choice] == pytest.approx(costs, rel=1e-3, abs=1e-9), choice


@pytest.mark.parametrize("trials", [MIN_PROBES, 40, 3 * KEPT_TRIALS])
def test_every_choice_of_a_sample(trials: int) -> None:
    offers = offers_of(appraiser_of(trials=trials))
    assert offers[0][:2] == (0, "file"), "the file is first, so it is taken where all cost the same"
    assert_near(by_choice(offers), BY_HAND)
    assert all(type(one.nbytes) is int for one in offers)


def test_most_of_a_picture_is_decoded_whole() -> None:
    found = by_choice(offers_of(appraiser_of(), sample(share=0.62)))
    assert found[0, "file"] == pytest.approx((20_000, 0.0, WHOLE_S + 0.0017))
    assert found[0, "roi-jpeg"] == pytest.approx((11_460, 0.0002, WHOLE_S * 0.67 + 0.0017), rel=1e-3)
    assert found[2, "pixels"] == pytest.approx((768, WHOLE_S + 0.001, 0.0007))


def test_a_file_that_cannot_be_cut() -> None:
    """A PNG file: it is decoded whole, at either end."""
    found = by_choice(offers_of(appraiser_of(), sample(can_be_cut=False)))
    wanted = {choice: costs for choice, costs in BY_HAND.items() if choice[1] != "roi-jpeg"}
    more_s = WHOLE_S - PART_S
    for choice, (nbytes, agent_s, rest_s) in wanted.items():
        wanted[choice] = (nbytes, agent_s, rest_s + more_s) if choice[0] == 0 else (nbytes, agent_s + more_s, rest_s)
    wanted[1, "pixels"] = BY_HAND[1, "pixels"]
    assert_near(found, wanted)


@pytest.mark.skipif(not WHOLE, reason="lepton_jpeg_python is not installed")
def test_a_whole_file_in_other_words() -> None:
    """It takes its time at either end, and then the loader does with it what it does with a file."""
    appraiser = Appraiser(4, 4, 2)
    for number in range(MIN_PROBES):
        appraiser.learn(hand_made(number, ["lepton"]))
    for can_be_cut, decode_s in ((True, PART_S), (False, WHOLE_S)):
        found = by_choice(offers_of(appraiser, sample(can_be_cut=can_be_cut)))
        assert found[0, "lepton"] == pytest.approx((16_200, 0.003, decode_s + 0.0017 + 0.52 * 0.003), rel=1e-3)
        assert found[0, "file"][2] == pytest.approx(decode_s + 0.0017)
    assert (0, "lepton") not in by_choice(offers_of(appraiser, sample(taken_by=()))), "a PNG file, say"
    assert (0, "lepton") not in by_choice(offers_of(appraiser, allowed=("roi-lepton",)))


def test_a_picture_of_unknown_size_has_no_choice_that_needs_it() -> None:
    found = by_choice(offers_of(appraiser_of(), KnownPicture(20_000, 0, None)))
    assert set(found) == {(0, "file"), (1, "pixels"), (2, "pixels"), (3, "pixels"), (4, "array")}
    assert found[1, "pixels"][0] == round(sum(3 * (10_000 + 700 * n) for n in range(MIN_PROBES)) / MIN_PROBES)


@pytest.mark.parametrize("most", range(5))
def test_no_choice_goes_further_than_either_end_allows(most: int) -> None:
    wanted = {choice: costs for choice, costs in BY_HAND.items() if choice[0] <= most}
    assert_near(by_choice(offers_of(appraiser_of(), furthest=most)), wanted)
    assert_near(by_choice(offers_of(appraiser_of(reach=most))), wanted)


@pytest.mark.parametrize("allowed", [(), ("file",), ("pixels",), ("array", "webp"), ("roi-jpeg",), NAMES])
def test_no_choice_is_in_an_encoding_that_is_not_allowed(allowed: Sequence[str]) -> None:
    found = by_choice(offers_of(appraiser_of(), allowed=allowed))
    assert_near(found, {choice: BY_HAND[choice] for choice in BY_HAND if choice[1] in (*allowed, "file")})


def test_a_pipeline_that_is_decoding_alone() -> None:
    chain = chain_of(None)
    appraiser = Appraiser(len(chain), 1, chain.resize_cut)
    for number in range(MIN_PROBES):
        trial = hand_made(number)
        appraiser.learn(SampleTrial(trial.file, trial.op_s[:1], trial.nbytes[:1], trial.plain[:1]))
    found = by_choice(offers_of(appraiser, KnownPicture(20_000, 30_000, None)))
    assert_near(found, {(0, "file"): (20_000, 0.0, WHOLE_S), (1, "pixels"): (90_000, WHOLE_S, 0.0)})


def test_pictures_that_are_all_alike_still_have_a_time_of_decoding() -> None:
    appraiser = Appraiser(4, 4, 2)
    for _ in range(MIN_PROBES):
        appraiser.learn(hand_made(3))
    found = by_choice(offers_of(appraiser, pictured(3)))
    assert found[1, "pixels"][1] == pytest.approx(hand_made(3).op_s[0])


def test_a_time_that_is_far_too_long_is_not_believed() -> None:
    """The first of a process loads libraries."""
    appraiser = Appraiser(4, 4, 2)
    for number in range(3 * MIN_PROBES):
        trial = hand_made(number)
        if number == 0:
            encoded = {name: (*row[:2], 100 * row[2]) for name, row in trial.encoded.items()}
            trial = SampleTrial(trial.file, tuple(100 * s for s in trial.op_s), trial.nbytes, trial.plain, encoded)
        appraiser.learn(trial)
    found = by_choice(offers_of(appraiser))
    for choice, (_, agent_s, rest_s) in BY_HAND.items():
        assert found[choice][1:] == pytest.approx((agent_s, rest_s), rel=0.1), choice


def test_pictures_of_very_different_sizes_are_no_outliers() -> None:
    """Most are small; the time of a large one is what it is."""
    appraiser = Appraiser(4, 4, 2)
    for number in range(20):
        times = 30 if number % 5 == 0 else 1
        px, nbytes = times * (10_000 + 700 * number), times * (5000 + 130 * (number * number % 17))
        seconds = 1e-7 * px + 2e-7 * nbytes
        encoded = {"roi-jpeg": (nbytes, nbytes // 2, 1e-8 * nbytes), "webp": (768, 600, 0.002)}
        found = sample(nbytes=nbytes, px=px).facts
        appraiser.learn(SampleTrial(found, (seconds, *OPS_S), (3 * px, 768, 768, 3072), hand_made(0).plain, encoded))
    large = by_choice(offers_of(appraiser, sample(nbytes=200_000, px=400_000)))
    assert large[1, "pixels"][1] == pytest.approx(0.04 + 0.04, rel=1e-3)
    assert large[0, "roi-jpeg"][1] == pytest.approx(0.002, rel=1e-3)


@given(st.lists(st.tuples(st.integers(0, 1 << 26), st.integers(1, 1 << 27), st.floats(0, 10)), min_size=8, max_size=20))
@examples(100)
def test_no_trials_make_a_cost_that_is_no_number(rows: list[tuple[int, int, float]]) -> None:
    """Whatever has been measured, an answer can be sent: sizes and seconds are finite and not negative."""
    appraiser = Appraiser(4, 4, 2)
    for px, nbytes, seconds in rows:
        found = KnownPicture(nbytes, px, begun_at(1 / 3) if px else None)
        encoded = {"roi-jpeg": (nbytes, max(1, nbytes // 2), seconds), "webp": (768, 700, seconds)}
        appraiser.learn(SampleTrial(found.facts, (seconds,) * 4, (3 * px, 768, 768, 3072), hand_made(0).plain, encoded))
    for px, nbytes, _ in rows:
        for one in offers_of(appraiser, KnownPicture(nbytes, px, begun_at(1 / 2) if px else None)):
            assert 0 <= one.nbytes < 1 << 64 and 0 <= one.agent_s <= 1e9 and 0 <= one.rest_s <= 1e9


# --- the cheapest ---------------------------------------------------------------------------------------------


def taken(wire: float, agent: float, rest: float) -> tuple[int, str]:
    return cheapest(offers_of(appraiser_of()), LoaderPrices(wire, agent, rest))[:2]


def test_each_price_leads_to_its_own_choice() -> None:
    assert taken(1.0, 0.0, 0.0) == (2, "webp"), "the smallest"
    assert taken(0.0, 1.0, 0.0) == (0, "file"), "nothing is done at the agent"
    assert taken(0.0, 0.0, 1.0) == (4, "array"), "nothing is left to the loader"
    assert taken(1.0, 1e9, 0.0) == (0, "file")
    assert taken(1e-7, 1.0, 0.0) == (0, "roi-jpeg"), "cheap at the agent, and small"
    assert taken(1e-7, 0.0, 1.0) == (3, "pixels")


def test_of_equal_choices_the_first_is_taken() -> None:
    assert taken(0.0, 0.0, 0.0) == (0, "file")
    assert cheapest([Offer(0, "file", 10, 0.0, 5.0), Offer(2, "pixels", 10, 0.0, 5.0)], LoaderPrices(1, 1, 1)).cut == 0


prices = st.floats(0, 1e9) | st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e9])


@given(st.tuples(prices, prices, prices))
@examples(100)
def test_nothing_is_cheaper_than_the_cheapest(price: tuple[float, float, float]) -> None:
    offers = offers_of(appraiser_of())
    bills = [price[0] * one.nbytes + price[1] * one.agent_s + price[2] * one.rest_s for one in offers]
    assert bills[offers.index(cheapest(offers, LoaderPrices(*price)))] == min(bills)


# --- before anything is known ---------------------------------------------------------------------------------


@needs_crop
def test_before_anything_is_known_the_part_of_the_file_is_sent() -> None:
    assert unproven(sample(), NAMES) == (0, "roi-jpeg")
    for found, allowed in ((sample(can_be_cut=False), NAMES), (sample(), ("file", "pixels", "webp"))):
        assert unproven(found, allowed) == (0, "file")


def test_a_file_that_is_no_picture_is_sent_as_it_is(tmp_path: Path) -> None:
    found = looked_at(b"no picture")
    assert unproven(found, NAMES) == (0, "file")
    for one in offers_of(appraiser_of(), found):
        assert one.encoding not in ("roi-jpeg", "webp", "lepton")
