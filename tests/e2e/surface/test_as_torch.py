"""What torch's class allows: copies, type arguments, other numbers of workers, and how far the sampler is read."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading
import typing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler
from tqdm import tqdm

from sophon_loader import LocalAgent, OffloadingDataLoader, OffloadOptions
from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.pipeline import randomness
from tests.support.agents import until
from tests.support.loaders import LOCAL, QUICK, SeenIndex, samples_of
from tests.support.pictures import eval_transform, folder

FILES = 24
LOADER = {"batch_size": 5, "policy": "resize-off"}

# --- copies -----------------------------------------------------------------------------------------------------


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, copy.copy])
def test_a_copy_goes_on_where_the_original_stands(make: Any, copied: Any, workers: int) -> None:
    loader = make(seed=3, num_workers=workers)
    first = copied(loader)
    epochs = [samples_of(loader), samples_of(loader)]
    assert samples_of(first) == epochs[0]
    second = copied(loader)
    assert samples_of(second) == samples_of(loader) and samples_of(second) == samples_of(loader)
    assert set(second.report().as_dict()["choices"]) == {"pixels"}
    for one in (first, second):
        one.close()


def test_a_copy_of_a_loader_with_a_local_agent_has_its_own(root: Path) -> None:
    loader = OffloadingDataLoader(folder(root), 5, agent=LOCAL, policy="all-off", seed=3, options=QUICK)
    before = samples_of(loader)
    other = pickled(loader)
    loader.close()
    other.set_epoch(0)
    assert samples_of(other) == before and set(other.report().as_dict()["choices"]) == {"array"}
    other.close()


def test_a_copy_of_a_loader_that_runs_plainly(root: Path, make: Any) -> None:
    dataset = folder(root, eval_transform())
    dataset.loader = print
    loader = OffloadingDataLoader(dataset, 5)
    assert pickled(loader).report().notes == copy.deepcopy(loader).report().notes == loader.report().notes


def iterate(loader: Any, told: Any) -> None:
    told.put(samples_of(loader))
    loader.close()


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_loader_passed_to_another_process(make: Any, method: str, iterated: bool) -> None:
    loader = make(seed=3)
    if iterated:
        samples_of(loader)
        loader.set_epoch(0)
    context: Any = multiprocessing.get_context(method)
    told = context.Queue()
    process = context.Process(target=iterate, args=(loader, told))
    process.start()
    found = told.get(timeout=120)
    process.join(60)
    assert process.exitcode == 0 and found == samples_of(loader)


def test_type_arguments() -> None:
    assert typing.get_origin(OffloadingDataLoader[int]) is OffloadingDataLoader


# --- numbers of workers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_any_number_of_workers_from_epoch_to_epoch(make: Any, persistent: bool) -> None:
    loader = make(seed=3, num_workers=2, persistent_workers=persistent)
    expected = make(seed=3)
    for workers in (2, 4, 1, 0, 3, 3, 0):
        loader.num_workers = workers
        assert samples_of(loader) == samples_of(expected), f"with {workers} workers"
        report = loader.report().as_dict()
        assert report["samples"] == FILES and report["choices"] == {"pixels": FILES}


def test_from_none_to_some(make: Any) -> None:
    loader = make(seed=3, policy="auto", batch_size=3)
    first, expected = samples_of(loader), make(seed=3, policy="auto", batch_size=3)
    assert first == samples_of(expected)
    loader.num_workers, loader.prefetch_factor = 2, 3
    assert samples_of(loader) == samples_of(expected)


# --- threads ------------------------------------------------------------------------------------------------------


def in_a_thread(work: Any) -> Any:
    """What `work` gives in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(120)


@pytest.mark.parametrize("where", ["agent", None])
def test_a_thread_that_loads_leaves_the_random_numbers_of_the_process_alone(make: Any, where: str | None) -> None:
    def loader() -> Any:
        return make(seed=3, batch_size=1, **({} if where else {"agent": None}))

    expected, threaded, states = samples_of(loader()), loader(), set()
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.warns(OffloadWarning, match="num_workers=0 is not safe outside the main thread"),
    ):
        loading = pool.submit(samples_of, threaded)
        while not loading.done():
            states.add(torch.get_rng_state().numpy().tobytes())
    assert loading.result() == expected
    assert len(states) <= 2, "torch itself draws once, as an iteration begins"
    assert threaded.num_workers == 0 and threaded.report().workers == 1


def test_batches_taken_in_another_thread_than_their_iterator_was_made_in(make: Any) -> None:
    batches = iter(make(seed=3))
    next(batches)
    with pytest.raises(ConfigError, match="num_workers must be at least 1 where a thread other than the main one"):
        in_a_thread(lambda: next(batches))


@pytest.mark.parametrize("where", ["agent", None])
def test_a_thread_that_draws_beside_the_loop_keeps_its_random_numbers(
    make: Any, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomness, "_DRAW_NOTHING", randomness._DRAW_NOTHING - {"tests"})

    def loader() -> Any:
        return make(seed=3, batch_size=1, **({} if where else {"agent": None}))

    stop, drawn = threading.Event(), []

    def draw() -> None:
        while not stop.is_set():
            drawn.append(torch.rand(()).item())
            stop.wait(0.0004)

    expected, beside = samples_of(loader()), loader()
    thread = threading.Thread(target=draw, name="environment")
    thread.start()
    until(lambda: len(drawn) > 0, "the thread's first number")  # until then nobody can tell what it is going to run
    try:
        with pytest.warns(OffloadWarning, match=r"num_workers=0 is not safe beside other threads \(environment\)"):
            found = samples_of(beside)
            assert samples_of(beside), "an epoch that begins with what the first has measured"
    finally:
        stop.set()
        thread.join()
    assert found == expected and beside.num_workers == 0 and beside.report().workers == 1
    again = [(drawn.index(number), at) for at, number in enumerate(drawn) if drawn.index(number) != at]
    assert len(again) <= 1, f"{again}: two of some hundred floats may be equal, once in some hundred runs"
    assert samples_of(beside) and beside.report().workers == 0, "the thread has ended"


def test_threads_that_draw_nothing_leave_the_loop_its_process(make: Any) -> None:
    bar = tqdm(total=1, mininterval=0.1, disable=False, file=io.StringIO())  # whose monitor is a thread
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        loader = make(seed=3)
        assert samples_of(loader) and loader.report().workers == 0
    server.shutdown()
    server.server_close()
    serving.join()
    bar.close()


def test_a_thread_loads_by_itself_what_draws_no_random_numbers(root: Path, make: Any) -> None:
    dataset = folder(root, eval_transform())
    loader = make(dataset)
    assert in_a_thread(lambda: samples_of(loader)) == samples_of(make(dataset)) and loader.report().workers == 0


# --- how far the sampler is read ----------------------------------------------------------------------------------


class Counted(SeenIndex):
    """A sampler that counts what has been taken from it."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        self.read = 0
        for index in self.order:
            self.read += 1
            yield index


@pytest.mark.parametrize(("workers", "factor"), [(0, None), (1, 1), (1, 2), (2, 2), (2, None), (3, 4)])
@pytest.mark.parametrize("where", ["agent", None])
def test_the_sampler_is_read_as_far_ahead_as_by_torch(
    root: Path, make: Any, workers: int, factor: int | None, where: str | None
) -> None:
    order = [*range(FILES), *range(FILES)]
    arguments: dict[str, Any] = {"batch_size": 1, "num_workers": workers, "prefetch_factor": factor}
    theirs, ours = Counted(order), Counted(order)
    loader = make(sampler=ours, **arguments, **({} if where else {"agent": None}))
    both = zip(DataLoader(folder(root), sampler=theirs, **arguments), loader, strict=True)
    for delivered, _ in enumerate(both, 1):
        assert ours.read <= theirs.read, f"{ours.read} after {delivered} batches"
        assert ours.read <= (factor or 2) * workers + delivered


def test_pin_memory_device_is_handed_on(make: Any) -> None:
    loader = make(pin_memory_device="cpu")
    iter(loader)
    assert loader._inner.loader.pin_memory_device == "cpu"


def test_the_order_is_torch_s(root: Path, make: Any) -> None:
    """With workers, or when nothing is drawn; docs/determinism.md says why not otherwise."""
    orders = []
    for build in (DataLoader, make):
        torch.manual_seed(8)
        dataset = folder(root, eval_transform())
        arguments: dict[str, Any] = {"batch_size": 5, "num_workers": 1, "sampler": RandomSampler(dataset)}
        loader = build(dataset, **arguments)
        orders.append([samples_of(loader) for _ in range(3)])
    assert orders[0] == orders[1]


# --- arguments of a wrong kind ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("agent", True, "agent must be an address like .*, got True"),
        ("agent", 5555, "agent must be an address like .*, got 5555"),
        ("agent", [True], "agent must be an address like .*, got .True"),
        ("agent", [], "agent must be one address"),
        ("agent", "fileserver:5555", "agent must be 'local', None or an address"),
        ("encodings", None, "encodings must be .*, got None; leave it out"),
        ("encodings", "webp", r"encodings must be .*, got 'webp'; .* write \['webp'\]"),
        ("encodings", [1], "encodings must be"),
        ("encodings", 7, "encodings must be"),
        ("options", {}, r"options must be an OffloadOptions, got \{\}"),
        ("options", {"window": 3}, "options must be an OffloadOptions"),
        ("seed", "abc", "seed must be an integer, got 'abc'; leave it out"),
        ("seed", 1.5, "seed must be an integer"),
        ("seed", True, "seed must be an integer"),
        ("policy", None, "policy must"),
        ("policy", 3, "policy must"),
        ("tail", None, "tail must be"),
        ("tail", 3.5, "tail must be"),
        ("profile", 3, "profile must be the path of a file, got 3"),
        ("profile", "", "profile must be the path of a file, got ''"),
        ("profile", "FOLDER", "profile must be the path of a file, got the folder"),
    ],
)
@pytest.mark.parametrize("offloadable", [True, False])
def test_arguments_of_a_wrong_kind(
    root: Path, tmp_path: Path, argument: str, value: Any, says: str, offloadable: bool
) -> None:
    if isinstance(value, str):
        value = value.replace("FOLDER", str(tmp_path))
    dataset: Any = folder(root) if offloadable else [1, 2, 3]
    with pytest.raises(ConfigError, match=says):
        OffloadingDataLoader(dataset, **{argument: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", "64"),
        ("window", 2.5),
        ("window", True),
        ("window_nbytes", 1e6),
        ("connect_timeout_s", "5"),
        ("heartbeat_s", None),
        ("dead_after_s", True),
    ],
)
def test_options_of_a_wrong_kind(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be .*, got"):
        OffloadOptions(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", 0), ("workers", "2"), ("limit_mbit", 0), ("limit_mbit", "100"), ("ops", "my_ops"), ("ops", (1,))],
)
def test_settings_of_a_local_agent_of_a_wrong_kind(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be .*, got"):
        LocalAgent(**{field: value})
