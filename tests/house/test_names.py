"""The public names: what is listed is there, what is typed is what comes, and asking for one loads no more than it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import milepost

HEAVY = (
    "torch",
    "numpy",
    "gymnasium",
    "stable_baselines3",
    "click",
    "msgspec",
    "xxhash",
    "zstandard",
    "safetensors",
    "matplotlib",
)


def names_for_the_type_checker() -> set[str]:
    tree = ast.parse(Path(milepost.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def modules_after(*code: str) -> set[str]:
    script = "\n".join(["import sys", *code, "print('\\n'.join(sys.modules))"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_the_listed_names_are_those_the_type_checker_sees() -> None:
    assert set(milepost.__all__) == names_for_the_type_checker()
    assert milepost.__all__ == sorted(milepost.__all__)


@pytest.mark.parametrize("name", milepost.__all__)
def test_a_listed_name_is_there(name: str) -> None:
    assert getattr(milepost, name) is getattr(milepost, name)
    assert name in dir(milepost)


def test_a_name_that_is_not_listed_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'checkpoint'"):
        milepost.checkpoint  # noqa: B018


def test_the_errors_in_the_tree_are_all_public() -> None:
    from milepost import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.MilepostError)}
    assert tree <= set(milepost.__all__)


def test_importing_milepost_imports_nothing_heavy() -> None:
    assert modules_after("import milepost").isdisjoint(HEAVY)


def test_looking_at_a_run_imports_no_more_than_it_needs() -> None:
    assert modules_after("import milepost.cli.main", "import milepost.cli.look").isdisjoint({"numpy", "zstandard", "torch"})


def test_supervising_a_command_imports_neither_numpy_nor_its_threads() -> None:
    script = ("import milepost.cli.main", "import milepost.cli.up", "import milepost.cli.run")
    assert modules_after(*script).isdisjoint({"numpy", "zstandard", "torch"})


def test_the_version_is_the_one_that_was_installed() -> None:
    from importlib.metadata import version

    assert milepost.__version__ == version("milepost")


def test_an_adapter_is_reached_from_the_package() -> None:
    script = ("import milepost", "assert milepost.adapters.sb3.Checkpointing")
    assert "stable_baselines3" in modules_after(*script)


def test_naming_the_adapters_imports_no_framework() -> None:
    assert "stable_baselines3" not in modules_after("import milepost", "assert milepost.adapters")


def test_importing_the_environments_imports_no_simulator() -> None:
    simulators = {"gymnasium", "mujoco", "ale_py", "Box2D", "stable_baselines3", "torch"}
    assert modules_after("import milepost.envs", "import milepost.envs.simulators").isdisjoint(simulators)
