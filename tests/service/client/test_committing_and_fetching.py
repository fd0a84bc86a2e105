"""What a trainer commits is what samplers fetch: bit for bit, whole, by every way, and nothing moves under who reads it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from milepost.errors import ConflictError, NotFoundError, ServiceError, UsageError
from milepost.service.client.client import Client
from milepost.service.client.line import Line
from milepost.service.core.records import Commit
from milepost.service.transports.base import Blob
from milepost.service.transports.folder import Folder
from milepost.service.transports.private_map import PrivateMap
from milepost.service.wire import unpack_sources
from tests.service.client.running import Running, running

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("run")) as service:
        yield service


@pytest.fixture
def connected(service: Running, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Return what connects a component of this test; it is closed with the test."""
    with ExitStack() as stack:

        def connect(name: str, role: Any = "sampler", **settings: Any) -> Client:
            return stack.enter_context(service.client(f"{request.node.name[:60]}-{name}", role, **settings))

        yield connect


@pytest.fixture
def trainer(connected: Connect) -> Client:
    return connected("trainer", "trainer")


@pytest.fixture
def sampler(connected: Connect) -> Client:
    return connected("sampler")


def odd_tensors() -> dict[str, torch.Tensor]:
    shared = torch.randn(3, 5)
    return {
        "float": torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45]),
        "bfloat": torch.randn(7).bfloat16(),
        "float8": torch.randn(6).to(torch.float8_e4m3fn),
        "complex": torch.randn(2, 2, dtype=torch.complex64),
        "bool": torch.tensor([True, False]),
        "count": torch.tensor(7),
        "nothing": torch.zeros(0, 4),
        "turned": torch.randn(4, 3).t(),
        "one": shared,
        "the same": shared,
    }


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("transport", ["auto", "bulk", "grpc"])
def test_what_is_committed_is_fetched_bit_for_bit(connected: Connect, transport: str) -> None:
    trainer, sampler = connected("trainer", "trainer", transport=transport), connected("sampler", transport=transport)
    tensors = odd_tensors()
    done = trainer.commit(5, tensors)
    weights = sampler.fetch()
    assert weights is not None
    assert (weights.at, weights.version, weights.step) == (done.at, done.version, 5)
    assert [*weights] == [*tensors]
    found = weights.tensors()
    assert {name: bits(tensor) for name, tensor in found.items()} == {name: bits(tensor) for name, tensor in tensors.items()}
    assert found["one"].data_ptr() == found["the same"].data_ptr()
    assert np.array_equal(weights["turned"], tensors["turned"].numpy())
    assert weights.described.shards == done.shards


def test_on_this_host_nothing_is_copied(trainer: Client, sampler: Client) -> None:
    trainer.commit(1, {"w": np.zeros(1 << 20)})
    before = sampler.status().counts
    weights = sampler.fetch()
    assert weights is not None
    array = weights["w"]
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, PrivateMap)
    assert not array.flags.writeable
    after = sampler.status().counts
    assert [after.get(f"bytes.{way}", 0) - before.get(f"bytes.{way}", 0) for way in ("bulk", "grpc")] == [0, 0]


def test_tensors_over_a_version_may_be_written_to_and_nobody_else_sees_it(connected: Connect, trainer: Client) -> None:
    first, second = connected("first"), connected("second")
    trainer.commit(1, {"w": torch.ones(1000)})
    mine, theirs = first.fetch(), second.fetch()
    assert mine is not None
    assert theirs is not None
    mine.tensors()["w"].zero_()
    assert float(theirs.tensors()["w"].sum()) == 1000
    again = first.fetch(has=None)
    assert again is not None
    assert float(again.tensors(copy=True)["w"].sum()) == 1000


def test_training_may_change_its_tensors_once_commit_has_returned(trainer: Client, sampler: Client) -> None:
    live = torch.arange(2_000_000)
    trainer.commit(1, {"w": live})
    live.zero_()
    weights = sampler.fetch()
    assert weights is not None
    assert torch.equal(weights.tensors()["w"], torch.arange(2_000_000))


def test_there_is_news_by_inequality_also_where_it_is_older(trainer: Client, sampler: Client) -> None:
    one, two = trainer.commit(1, {"w": np.array([1])}), trainer.commit(2, {"w": np.array([2])})
    newest = sampler.fetch()
    assert newest is not None
    assert newest.at == two.at
    assert sampler.fetch() is None
    sampler.rollback(one.at.number, "it had learned nothing")
    older = sampler.fetch(timeout=60)
    assert older is not None
    assert (older.at, older["w"].tolist()) == (one.at, [1])
    with pytest.raises(ServiceError, match="left") as lost:
        sampler.fetch(want="exact", at=two)
    assert lost.value.kind == "lost-branch"
    # The trainer still has what was rolled back, and would bring it to life again.
    with pytest.raises(ServiceError) as refused:
        trainer.commit(3, {"w": np.array([3])})
    assert refused.value.kind == "lost-branch"
    assert trainer.commit(3, {"w": np.array([3])}, parent=older).at.number > two.at.number


def test_an_exact_version_is_had_by_its_number_and_one_that_comes_is_waited_for(trainer: Client, sampler: Client) -> None:
    one, _ = trainer.commit(1, {"w": np.array([1])}), trainer.commit(2, {"w": np.array([2])})
    weights = sampler.fetch(want="exact", at=one.at.number)
    assert weights is not None
    assert weights["w"].tolist() == [1]
    with pytest.raises(NotFoundError) as unknown:
        sampler.fetch(want="exact", at=10**6)
    assert unknown.value.kind == "unknown-version"
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(sampler.fetch(60, want="at least", at=one.at.number + 2)), name="milepost-test-waits"
    )
    waiting.start()
    three = trainer.commit(3, {"w": np.array([3])})
    waiting.join(60)
    assert [weights.at for weights in found] == [three.at]


def test_views_outlive_their_version(trainer: Client, sampler: Client) -> None:
    trainer.commit(0, {"w": np.full(100_000, 0)})
    weights = sampler.fetch()
    assert weights is not None
    view = weights["w"]
    weights.release()
    for step in range(1, 9):  # more than are kept, in memory and on disk
        trainer.wait_durable(trainer.commit(step, {"w": np.full(100_000, step)}))
    assert view.min() == view.max() == 0
    with pytest.raises(UsageError) as released:
        weights["w"]
    assert released.value.kind == "released"


def readers(client: Client, at: Any) -> int:
    return sum(each.readers for each in client.status().versions if each.weights.at == at)


@pytest.mark.parametrize("how", ["dropped", "released", "left", "closed"])
def test_what_nobody_reads_any_more_is_given_back(connected: Connect, trainer: Client, how: str) -> None:
    sampler = connected("reader")
    at = trainer.commit(1, {"w": np.zeros(10)}).at
    weights = sampler.fetch()
    again = sampler.fetch(has=None)
    assert weights is not None
    assert again is not None
    assert readers(trainer, at) == 1
    again.release()
    assert readers(trainer, at) == 1
    if how == "dropped":
        del weights
        gc.collect()
    elif how == "released":
        weights.release()
    elif how == "left":
        with weights:
            pass
    else:
        sampler.close()
        assert weights["w"].tolist() == [0.0] * 10
    for _ in range(100_000):  # a thread of its own says so; each look is a call
        if not readers(trainer, at):
            return
    pytest.fail("it is still counted as being read")


def test_an_optimizer_comes_back_as_the_tree_that_it_was(trainer: Client, sampler: Client) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    trainer.commit(1, model.state_dict(), parts={"optimizer": optimizer.state_dict()})
    weights = sampler.fetch(parts=("weights", "optimizer"))
    assert weights is not None
    assert weights.parts == ("optimizer", "weights")
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(weights.tensors())
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(weights.part("optimizer"))
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert bits(again.state_dict()["state"][number][name]) == bits(value)
    only = sampler.fetch(has=None)
    assert only is not None
    assert only.parts == ("weights",)
    with pytest.raises(NotFoundError, match="was not fetched"):
        only.part("optimizer")
    with pytest.raises(NotFoundError, match="has no such part"):
        sampler.fetch(has=None, parts=("critic",))


def test_weights_are_published_in_fewer_bits_and_other_parts_as_they_are(trainer: Client, sampler: Client) -> None:
    weight, moment = torch.randn(100), torch.randn(100)
    trainer.commit(1, {"w": weight, "n": torch.tensor(3)}, parts={"m": {"m": moment}}, publish_dtype=torch.bfloat16)
    weights = sampler.fetch(parts=("weights", "m"))
    assert weights is not None
    assert torch.equal(weights.tensors()["w"], weight.bfloat16())
    assert weights.tensors()["n"].dtype == torch.int64
    assert torch.equal(weights.part("m")["m"], moment)
    assert np.array_equal(weights.array("w", "float32"), weight.bfloat16().float().numpy())
    with pytest.raises(UsageError) as unknown:
        weights["w"]
    assert unknown.value.kind == "not-in-numpy"


def test_a_key_stands_for_one_commit(connected: Connect, trainer: Client) -> None:
    first = trainer.commit(1, {"w": np.array([1])}, key="step-1")
    assert trainer.commit(1, {"w": np.array([1])}, key="step-1") == first
    with pytest.raises(ConflictError) as other:
        trainer.commit(1, {"w": np.array([2])}, key="step-1")
    assert other.value.kind == "key-reused"
    next_start = connected("trainer", "trainer", step=1)
    assert next_start.commit(1, {"w": np.array([1])}, key="step-1").at == first.at


def test_parts_that_several_bring_are_one_version_once_all_are_there(connected: Connect, sampler: Client) -> None:
    ranks = [connected("ranks", "trainer", incarnation="agreed-on") for _ in range(2)]
    states = [{"a": np.arange(5)}, {"b": np.arange(7.0)}]
    sizes = {f"weights.{rank}-of-2": ranks[0].size_of(state) for rank, state in enumerate(states)}
    commits = [rank.begin(3, sizes, key="step 3") for rank in ranks]
    before = sampler.status().live
    ranks[0].bring(commits[0], "weights.0-of-2", states[0])
    assert sampler.status().live == before
    assert sampler.status().stagings[0].missing == ("weights.1-of-2",)
    ranks[1].bring(commits[1], "weights.1-of-2", states[1])
    done = [rank.finish(commit) for rank, commit in zip(ranks, commits, strict=True)]
    assert done[0] == done[1]
    weights = sampler.fetch()
    assert weights is not None
    assert weights.at == done[0].at
    assert {name: array.tolist() for name, array in weights.items()} == {"a": [*range(5)], "b": [*map(float, range(7))]}
    assert len(weights) == 2
    with pytest.raises(UsageError, match="as large as"):
        ranks[0].bring(ranks[0].begin(4, {"weights.0-of-1": 1}, key="step 4"), "weights.0-of-1", states[0])


def test_who_finishes_a_commit_of_several_touches_nothing_that_is_visible(
    service: Running, connected: Connect, sampler: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [connected("ranks", "trainer", incarnation="agreed-on") for _ in range(2)]
    states = [{"a": np.arange(5.0)}, {"b": np.arange(7.0)}]
    sizes = {f"weights.{rank}-of-2": ranks[0].size_of(state) for rank, state in enumerate(states)}
    commits = [rank.begin(3, sizes, key="once") for rank in ranks]
    made: list[Blob] = []
    map_new = Folder.map_new
    monkeypatch.setattr(Folder, "map_new", lambda self, blob, size: made.append(blob) or map_new(self, blob, size))
    for rank, slot in enumerate(sizes):
        ranks[rank].bring(commits[rank], slot, states[rank])
    for rank, commit in zip(ranks, commits, strict=True):
        rank.finish(commit)
    assert [blob.name for blob in made] == [f"{slot}.safetensors" for slot in sizes]
    # Nor could who was stopped for long in the middle of it, and goes on now.
    monkeypatch.undo()
    sources = unpack_sources(commits[0].bring.sinks) if commits[0].bring is not None else ()
    assert ranks[0]._commits._ways.room(sources, made[0], sizes["weights.0-of-2"]) is None
    weights = sampler.fetch()
    assert weights is not None
    assert weights["a"].tolist() == [*range(5)]


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, 2**63])
def test_a_step_is_a_number(trainer: Client, step: Any) -> None:
    with pytest.raises(UsageError, match="a step is a whole number") as refused:
        trainer.commit(step, {"w": np.zeros(1)})
    assert refused.value.kind == "bad-number"
    assert trainer.commit(np.int64(3), {"w": np.zeros(1)}).version.step == 3


def test_news_may_be_waited_for_without_end(trainer: Client, connected: Connect) -> None:
    sampler = connected("sampler")
    before = sampler.fetch()
    thread = threading.Thread(target=lambda: trainer.commit(1, {"w": np.zeros(1)}), name="milepost-test-commit")
    thread.start()
    weights = sampler.fetch(float("inf"))
    thread.join()
    assert weights is not None
    assert before is None or weights.at != before.at


@pytest.mark.parametrize("method", ["Begin", "Arrived", "Finish"])
def test_a_commit_that_is_interrupted_leaves_nothing_on_its_way(
    trainer: Client, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    really = Line.call

    def call(self: Line, name: str, request: Any, timeout_s: float) -> Any:
        answer = really(self, name, request, timeout_s)
        if name == method:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(Line, "call", call)
    with pytest.raises(KeyboardInterrupt):
        trainer.commit(1, {"w": np.zeros(1)})
    monkeypatch.undo()
    # What was there whole is becoming visible: for that it is too late.
    assert not any(each.missing for each in trainer.status().stagings if each.component == trainer.component)
    assert trainer.commit(2, {"w": np.zeros(1)}).version.step == 2


def test_a_client_that_the_collector_finds_in_its_own_thread_ends(service: Running) -> None:
    keep = [service.client("found by the collector")]
    heartbeat, calls = keep[0]._heartbeat, keep[0]._calls

    def collect() -> list[Commit]:
        keep.clear()  # the last reference, in the midst of what the heartbeat's thread does
        return []

    heartbeat.reads = collect
    heartbeat.release(Commit(1, 1))
    assert heartbeat._thread.wait(60)
    assert calls.closing.is_set()
    with pytest.raises(ServiceError, match="closed"):
        calls.line.channel()


def test_a_watch_alone_keeps_its_client(trainer: Client, service: Running) -> None:
    trainer.commit(1, {"w": np.zeros(1)})
    watch = service.client("watching alone").watch()
    assert next(watch).at is not None
    client = watch._client
    assert isinstance(client, Client)
    client.close()
    assert [*watch] == []


def test_several_threads_commit_and_fetch_and_no_version_is_a_mixture(connected: Connect, trainer: Client) -> None:
    sampler = connected("sampler")
    failures: list[object] = []
    over = threading.Event()

    def fetch() -> None:
        try:
            while not over.is_set():
                weights = sampler.fetch(has=None)
                if weights is not None and "x" in weights:
                    values = {int(value) for name in weights for value in np.unique(weights[name])}
                    if len(values) != 1:
                        failures.append(values)
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    def commit(first: int) -> None:
        try:
            for step in range(first, first + 8):
                trainer.commit(step, {name: np.full(3000, step) for name in "xyz"})
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=fetch, name=f"milepost-test-fetch-{number}") for number in range(2)]
    writers = [threading.Thread(target=commit, args=(10 * number,), name=f"milepost-test-{number}") for number in range(3)]
    for thread in [*threads, *writers]:
        thread.start()
    for thread in writers:
        thread.join(120)
    over.set()
    for thread in threads:
        thread.join(120)
    assert failures == []


def test_who_watches_hears_what_is_and_then_what_becomes(connected: Connect, trainer: Client, sampler: Client) -> None:
    one = trainer.commit(1, {"w": np.array([1])}, durable=True)
    with sampler.watch() as news:
        assert next(news).at == one.at
        two = trainer.commit(2, {"w": np.array([2])})
        heard = next(each for each in news if each.at == two.at)
        assert heard.version == two.version
        trainer.wait_durable(two)
        assert next(each for each in news if each.durable == two.at).at == two.at
        trainer.rollback(one, "worse")
        assert next(each for each in news if each.at == one.at).reason == "rolled back"
    assert [*news] == []


def test_a_watch_ends_with_its_client(connected: Connect) -> None:
    sampler = connected("sampler")
    news = sampler.watch()
    next(news)
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.extend(news), name="milepost-test-watches")
    waiting.start()
    sampler.close()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_trainer_links_its_checkpoint_and_holds_sampling_until_restored_weights_are_there(
    trainer: Client, sampler: Client
) -> None:
    done = trainer.commit(1, {"w": np.array([1])}, durable=True)
    trainer.link(done, 7)
    assert [each.generation for each in sampler.status().versions if each.weights.at == done.at] == [7]
    trainer.hold()
    with pytest.raises(ServiceError) as held:
        sampler.fetch()
    assert held.value.kind == "held"
    restored = trainer.commit(1, {"w": np.array([0])})
    trainer.resume()
    weights = sampler.fetch()
    assert weights is not None
    assert weights.at == restored.at


def test_a_component_is_one_process(connected: Connect) -> None:
    first = connected("sampler")
    first.fetch()
    second = connected("sampler")
    with pytest.raises(ConflictError, match="taken the place") as superseded:
        first.fetch()
    assert superseded.value.kind == "superseded"
    with pytest.raises(ConflictError):
        first.status()
    second.fetch()


def test_only_a_trainer_commits(sampler: Client) -> None:
    with pytest.raises(UsageError) as refused:
        sampler.commit(1, {"w": np.array([1])})
    assert refused.value.kind == "no-trainer"


def test_what_cannot_be_saved_is_refused_by_its_path_before_anything_is_announced(trainer: Client) -> None:
    with pytest.raises(UsageError, match="weights/b"):
        trainer.commit(1, {"a": np.zeros(3), "b": object()})
    with pytest.raises(UsageError, match="may not have this name"):
        trainer.commit(1, {"a": np.zeros(3)}, parts={"../a": {}})
    with pytest.raises(UsageError, match="in this dtype"):
        trainer.commit(1, {"a": np.zeros(3)}, publish_dtype="int8")
    # What was there whole is becoming visible: for that it is too late.
    assert not any(each.missing for each in trainer.status().stagings if each.component == trainer.component)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.commit(1, None), "bad-weights: weights are a mapping of names to tensors and arrays"),
        (lambda client: client.commit(1, [np.zeros(3)]), "bad-weights: weights are a mapping of names to tensors and arrays"),
        (lambda client: client.commit(-1, {}), "bad-number: a step is a whole number, and not below 0"),
        (lambda client: client.commit(1.5, {}), "bad-number: a step is a whole number, and not below 0"),
        (lambda client: client.commit("1", {}), "bad-number: a step is a whole number, and not below 0"),
        (lambda client: client.commit(1, {}, parent="v1"), "bad-version: this is no version"),
        (lambda client: client.commit(1, {}, key="a\nb"), "bad-name: a key is a text of 1 to 128 printable characters"),
        (lambda client: client.fetch(want="latest"), "bad-want: this does not say which version is wanted"),
        (lambda client: client.fetch(want="exact", at="v1"), "bad-version: this is no version"),
        (lambda client: client.fetch(has=7), "bad-version: this is no version"),
        (lambda client: client.rollback("v1", "why"), "bad-version: this is no version"),
    ],
)
def test_what_a_call_cannot_mean_is_said_in_the_words_of_the_call(
    trainer: Client, call: Callable[[Client], object], said: str
) -> None:
    before = trainer.status().live
    with pytest.raises(UsageError) as refused:
        call(trainer)
    assert f"{refused.value.kind}: {refused.value.message}" == said
    assert trainer.status().live == before


@pytest.mark.parametrize("component", ["", "a\nb", "x" * 129, None])
def test_a_component_has_a_name_that_can_be_shown(service: Running, component: Any) -> None:
    with pytest.raises(UsageError) as refused:
        service.client(component)
    assert refused.value.kind == "bad-name"


def test_a_closed_client_says_so(connected: Connect) -> None:
    client = connected("client")
    client.close()
    client.close()
    with pytest.raises(ServiceError) as closed:
        client.fetch()
    assert closed.value.kind == "closed"


def test_weights_are_told_to_people(trainer: Client, sampler: Client) -> None:
    trainer.commit(12, {"w": np.zeros(4)})
    weights = sampler.fetch()
    assert weights is not None
    assert repr(weights).startswith(f"<Weights {weights.at} of step 12, ")
    assert weights in [weights]  # arrays have no truth to compare mappings of them by
