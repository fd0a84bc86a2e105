"""The words for whether a trainer saves and resumes."""

from __future__ import annotations

import pytest

from milepost.errors import UsageError
from milepost.pytorch.recover.modes import mode_of


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *[(one, "on") for one in ("on", "auto", "Auto", " ON ", True, "True", "true")],
        *[(one, "off") for one in ("off", "disabled", "OFF", False, "False", "false")],
    ],
)
def test_aliases_and_what_configurations_make_of_a_bare_on_are_understood(given: object, meant: str) -> None:
    assert mode_of(given) == meant


@pytest.mark.parametrize("old", ["fault", "resume", "Fault"])
def test_an_old_mode_of_areal_is_refused_with_what_has_taken_its_place(old: str) -> None:
    with pytest.raises(UsageError, match="older versions of AReaL") as caught:
        mode_of(old)
    assert caught.value.kind == "old-mode"
    assert "milepost run" in caught.value.hint


@pytest.mark.parametrize("wrong", ["", "yes please", None, 1, 0, 1.0, b"on", ["on"]])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError) as caught:
        mode_of(wrong)
    assert caught.value.kind == "bad-mode"
