"""Edges are loaded once the package they watch is there, and not before."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from typing import Any

import pytest

from milepost.errors import UsageError
from milepost.state import kinds


def python(*lines: str) -> str:
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_saving_arrays_imports_no_framework() -> None:
    code = ("import sys, numpy", "from milepost.state.tree import flatten", "from milepost.state.rng import Rng")
    assert python(*code, "flatten({'a': numpy.zeros(2), 'r': Rng()}, 'x')", "print('torch' in sys.modules)") == "False"


def test_a_tensor_is_known_as_soon_as_torch_is_imported_by_somebody() -> None:
    code = ("from milepost.state.tree import flatten", "flatten({}, 'x')", "import torch")
    assert python(*code, "print(flatten(torch.zeros(2), 'x').leaves[0].spec)") == "torch float32[2]"


def test_an_edge_that_cannot_be_loaded_is_named_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_waiting", [("sys", "no_such_module:register")])
    for _ in range(2):
        with pytest.raises(UsageError, match="no_such_module:register") as caught:
            kinds.load_edges()
        assert caught.value.kind == "broken-edge"


def test_two_threads_that_come_upon_an_edge_at_once_both_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    edge: Any = types.ModuleType("an_edge")

    def register() -> None:
        calls.append(1)
        if len(calls) == 1:
            other = threading.Thread(target=kinds.load_edges, name="milepost-test-other")
            other.start()
            other.join()
            assert len(calls) == 2, "it went on without an edge that was not loaded yet"

    edge.register = register
    monkeypatch.setitem(sys.modules, "an_edge", edge)
    monkeypatch.setattr(kinds, "_waiting", [("sys", "an_edge:register")])
    kinds.load_edges()
    kinds.load_edges()
    assert len(calls) == 2


def test_an_edge_waits_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    edge: Any = types.ModuleType("an_edge")
    edge.register = lambda: calls.append(1)
    monkeypatch.setitem(sys.modules, "an_edge", edge)
    monkeypatch.setattr(kinds, "_waiting", [("a_package", "an_edge:register")])
    kinds.load_edges()
    assert calls == []
    monkeypatch.setitem(sys.modules, "a_package", types.ModuleType("a_package"))
    kinds.load_edges()
    kinds.load_edges()
    assert calls == [1]
