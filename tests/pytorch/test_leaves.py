"""Tensors, modules, optimizers and torch's generators come back bit for bit, in place."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.pytorch import leaves as edge
from milepost.records import LeafRecord
from milepost.state.compare import compare
from milepost.state.inflate import inflate
from milepost.state.restore import check_restorable, restore
from milepost.state.tree import flatten
from tests.state.trees import Stored

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
DTYPES = sorted(edge._DTYPES)


def raw(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return dtype, shape and bytes, by a road of its own: torch's storage."""
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor.dtype, tuple(tensor.shape), bytes(plain.untyped_storage())[: plain.numel() * plain.element_size()]


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = torch.empty(shape).numel() * dtype.itemsize
    data = (
        np.random.default_rng(1).integers(0, 2, size, np.uint8) if dtype is torch.bool else np.random.default_rng(1).bytes(size)
    )
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(name: str) -> None:
    whole = tensor_of(getattr(torch, name), 4, 6)
    tree = [whole, whole.t(), whole[::2, 1], whole[0, 0], whole[:0], whole[None, :, :1]]
    stored = Stored(tree)
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert [raw(tensor) for tensor in made] == [raw(tensor) for tensor in tree]
    live = [torch.empty_like(tensor) for tensor in tree]
    live[1] = torch.empty_like(whole).t()
    kept = list(live)
    restore(live, stored.node, stored.leaves, stored, "x")
    assert all(new is old for new, old in zip(live, kept, strict=True))
    assert [raw(tensor) for tensor in live] == [raw(tensor) for tensor in tree]


def test_every_dense_dtype_of_torch_is_known_or_refused_by_name() -> None:
    names = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    for dtype in names - set(edge._DTYPES.values()):
        if not str(dtype).startswith("torch.q"):
            with pytest.raises(UsageError) as caught:
                flatten({"w": torch.empty(2, dtype=dtype)}, "policy")
            assert caught.value.facts["path"] == "policy/w"


@pytest.mark.parametrize("make", [lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.expand(3, 2, 2)])
def test_lazy_views_are_carried_out(make: Any) -> None:
    tensor = make(torch.complex(torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[5.0, 6], [7, 8]])))
    stored = Stored([tensor])
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert torch.equal(made[0], tensor)
    live = torch.zeros((2, 2), dtype=torch.complex64).conj()
    if tensor.is_conj():
        restore([live], stored.node, stored.leaves, stored, "x")
        assert torch.equal(live, tensor)


@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(2).to_sparse(), lambda: torch.empty(2, device="meta"), lambda: torch.empty(2, dtype=torch.bits8)],
)
def test_a_tensor_without_plain_memory_is_refused_by_its_path(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        flatten({"w": make()}, "policy")
    assert (caught.value.kind, caught.value.facts["path"]) == ("unsupported-dtype", "policy/w")


def test_a_tensor_subclass_nobody_registered_is_refused() -> None:
    class Odd(torch.Tensor):
        pass

    with pytest.raises(UsageError) as caught:
        flatten({"w": torch.zeros(2).as_subclass(Odd)}, "policy")
    assert caught.value.kind == "unknown-object"


def test_an_unknown_dtype_and_an_absurd_shape_are_damage() -> None:
    for dtype, shape in [("float7", (1,)), ("float32", (2**61,)), ("float32", (0, 2**61, 2**61)), ("float32", (2,) * 65)]:
        record = LeafRecord("x", "torch", dtype, shape, 0, 0, 0, "")
        with pytest.raises(CorruptError):
            inflate(["array", 0], [record], Stored(1))


class Net(nn.Module):
    """Has buffers, tied weights and a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.steps = {"n": 0}

    def get_extra_state(self) -> Any:
        return self.steps

    def set_extra_state(self, state: Any) -> None:
        self.steps.clear()
        self.steps.update(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(self.inner(x).mean((2, 3))))


def trained(steps: int) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, amsgrad=True)
    for _ in range(steps):
        train(net, optimizer)
    return net, optimizer


def train(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.rand(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    net.steps["n"] += 1


def test_a_module_and_its_optimizer_go_on_with_the_same_bits() -> None:
    net, optimizer = trained(3)
    stored = Stored({"policy": net, "optimizer": optimizer, "torch": torch.default_generator})
    train(net, optimizer)
    fresh, its_optimizer = trained(0)
    live = {"policy": fresh, "optimizer": its_optimizer, "torch": torch.default_generator}
    assert compare(live, stored.node, stored.leaves, "x") == []
    restore(live, stored.node, stored.leaves, stored, "x")
    train(fresh, its_optimizer)
    assert fresh.steps == net.steps
    assert fresh.a.weight is fresh.b.weight
    for mine, theirs in zip(fresh.state_dict().values(), net.state_dict().values(), strict=True):
        assert mine == theirs if isinstance(mine, dict) else raw(mine) == raw(theirs)


def test_a_modules_bytes_are_read_straight_into_its_memory() -> None:
    net, _ = trained(1)
    stored = Stored(net)
    live = Net().to(memory_format=torch.channels_last)
    own = {tensor.data_ptr() for tensor in live.state_dict().values() if isinstance(tensor, torch.Tensor)}
    targets: set[int] = set()
    fill = stored.read_into

    def read_into(index: int, into: memoryview) -> None:
        targets.add(np.frombuffer(into, np.uint8).__array_interface__["data"][0])
        fill(index, into)

    stored.read_into = read_into  # type: ignore[method-assign]
    restore(live, stored.node, stored.leaves, stored, "policy")
    assert len(own - targets) == 1  # the channels_last weight has another order of bytes, and is copied
    assert torch.equal(live.inner[0].weight, net.inner[0].weight)
    assert live.inner[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert live.a.weight.requires_grad


def test_the_layout_versions_of_a_module_are_kept() -> None:
    stored = Stored(Net())
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert made._metadata == Net().state_dict()._metadata


def test_what_torch_save_holds_of_a_state_dict_is_what_comes_back() -> None:
    _, optimizer = trained(2)
    stored = Stored(optimizer)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    theirs = torch.load(io.BytesIO(buffer.getvalue()))
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert made["param_groups"] == theirs["param_groups"]
    for number, state in theirs["state"].items():
        assert {name: raw(tensor) for name, tensor in made["state"][number].items()} == {k: raw(v) for k, v in state.items()}


def test_a_modules_differences_are_all_listed() -> None:
    stored = Stored(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    differences = compare(
        nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1, dtype=torch.float64, bias=False)), *parts(stored), "policy"
    )
    assert [(each.path, each.kind) for each in differences] == [
        ("policy/0.weight", "shape"),
        ("policy/0.bias", "shape"),
        ("policy/1.weight", "shape"),
        ("policy/1.bias", "missing"),
    ]


def parts(stored: Stored) -> tuple[Any, Any]:
    return stored.node, stored.leaves


def test_an_optimizer_is_compared_with_the_parameters_it_will_drive() -> None:
    _, optimizer = trained(1)
    stored = Stored(optimizer)
    assert compare(trained(0)[1], *parts(stored), "optimizer") == []
    other = torch.optim.AdamW(nn.Linear(3, 3).parameters())
    assert [each.path for each in compare(other, *parts(stored), "o")] == ["o/param_groups[0]/params"]
    two = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))]}])
    assert [each.path for each in compare(two, *parts(stored), "o")] == ["o/param_groups"]
    wide = [nn.Parameter(torch.zeros(9, *p.shape)) for p in optimizer.param_groups[0]["params"]]
    paths = [each.path for each in compare(torch.optim.AdamW(wide), *parts(stored), "o")]
    assert "o/state[0]/exp_avg" in paths
    assert len(paths) == 3 * len(wide)
    assert not any(path.endswith("/step") for path in paths)


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor", "Rprop", "RMSprop", "Adagrad", "NAdam", "Adamax", "ASGD", "Adadelta"])
def test_optimizers_of_every_shape_of_state_fit_themselves(name: str) -> None:
    def built() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        return net, getattr(torch.optim, name)(net.parameters(), lr=0.1)

    def closure(net: nn.Linear, optimizer: torch.optim.Optimizer) -> Any:
        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = net(torch.ones(1, 3)).square().sum()
            value.backward()
            return value

        return loss

    net, optimizer = built()
    optimizer.step(closure(net, optimizer))
    stored = Stored({"o": optimizer, "n": net})
    fresh, its = built()
    assert compare({"o": its, "n": fresh}, *parts(stored), "x") == []
    restore({"o": its, "n": fresh}, *parts(stored), stored, "x")
    for n, o in ((net, optimizer), (fresh, its)):
        o.step(closure(n, o))
    assert raw(net.weight) == raw(fresh.weight)


def test_schedules_are_free() -> None:
    _, optimizer = trained(0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    stored = Stored(schedule)
    other = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    assert compare(other, *parts(stored), "lr_scheduler") == []


def test_a_module_that_refuses_its_state_is_named() -> None:
    class Picky(nn.Linear):
        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not today")

    stored = Stored(nn.Linear(1, 1))
    with pytest.raises(MismatchError, match="not today") as caught:
        restore(Picky(1, 1), *parts(stored), stored, "policy")
    assert caught.value.facts["path"] == "policy"


def test_two_saved_arrays_with_one_path_are_not_read_into_one_memory() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extra = {"b": torch.zeros(2)}
            self.register_buffer("_extra_state/b", torch.zeros(2))

        def get_extra_state(self) -> Any:
            return dict(self.extra)

        def set_extra_state(self, state: Any) -> None:
            self.extra["b"].copy_(state["b"])

    saved, live = Split(), Split()
    saved.extra["b"] += 1
    saved.get_buffer("_extra_state/b").add_(2)
    stored = Stored(saved)
    restore(live, *parts(stored), stored, "policy")
    assert live.extra["b"].tolist() == [1, 1]
    assert live.get_buffer("_extra_state/b").tolist() == [2, 2]


def test_tied_tensors_are_one_leaf_and_tied_again() -> None:
    weight = nn.Parameter(torch.rand(3))
    stored = Stored({"a": weight, "b": weight.detach(), "c": weight.detach()[:2]})
    assert len(stored.leaves) == 2
    made: Any = inflate(*parts(stored), stored)
    assert made["a"] is made["b"]


def test_a_conjugate_over_the_same_memory_is_another_leaf() -> None:
    tensor = torch.complex(torch.ones(2), torch.ones(2))
    stored = Stored([tensor, tensor.conj(), tensor.conj().imag, tensor.imag])
    made: Any = inflate(*parts(stored), stored)
    assert [each.tolist() for each in made] == [[1 + 1j] * 2, [1 - 1j] * 2, [-1] * 2, [1] * 2]


def test_a_restored_parameter_keeps_its_gradient_flag_and_its_graph_is_untouched() -> None:
    live = {"w": nn.Parameter(torch.zeros(2)), "v": torch.zeros(2, requires_grad=True)}
    stored = Stored({"w": nn.Parameter(torch.ones(2)), "v": torch.ones(2)})
    kept = live["w"]
    restore(live, *parts(stored), stored, "x")
    assert live["w"] is kept
    assert kept.requires_grad
    assert kept.grad_fn is None
    assert kept.tolist() == [1, 1]


def test_small_values_and_generators_come_back() -> None:
    tree = [torch.zeros(2, 3).shape, torch.bfloat16, torch.device("cpu"), torch.Generator().manual_seed(3)]
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist()
    stored = Stored(tree)
    made: Any = inflate(*parts(stored), stored)
    assert made[:3] == tree[:3]
    assert [type(each) for each in made] == [type(each) for each in tree]
    assert torch.rand(2, generator=made[3]).tolist() == expected
    live = torch.Generator()
    assert restore([*tree[:3], live], *parts(stored), stored, "x")[3] is live
    assert torch.rand(2, generator=live).tolist() == expected
    check_restorable(live, "rng")
