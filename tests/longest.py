"""Say which files take longest: where several workers share the tests out, these come first, and none is left for the end."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent

LONGEST = (
    "crash/test_kill_everywhere.py",
    "takeover/test_stopped_writers.py",
    "pytorch/recover/test_killed.py",
    "examples/test_trainer_demo.py",
    "adapters/test_sb3_exact.py",
    "exactness/test_matrix.py",
    "engine/test_ctrl_c_anywhere.py",
    "soak/test_soak.py",
    "engine/test_process_writer.py",
    "pytorch/export/test_killed.py",
    "siege/test_siege.py",
    "siege/test_siege_sb3.py",
    "supervise/test_run_engine.py",
    "power/test_runs.py",
    "model/test_model.py",
    "docs/test_code_blocks.py",
    "envs/test_workers.py",
    "exactness/test_forgetting.py",
    "supervise/test_drill.py",
    "supervise/test_selftest.py",
    "supervise/test_up.py",
    "pytorch/recover/test_killed_ranks.py",
    "sick/test_sick_disks.py",
    "examples/test_examples.py",
    "soak/test_ages.py",
    "takeover/test_leases_stateful.py",
    "takeover/test_leased_writers.py",
    "supervise/test_forked_children.py",
    "supervise/test_run.py",
    "supervise/test_sb3_ctrl_c.py",
    "supervise/test_torchrun.py",
    "bench/test_floors.py",
    "pytorch/dcp/test_process.py",
)
"""The longest first. Whoever adds a file of more than ten seconds adds it here."""


_PLACES = {TESTS / name: place for place, name in enumerate(LONGEST)}


def rank(path: Path) -> int:
    """Return when a file's turn is: the place of its name in `LONGEST`, or after all of these."""
    return _PLACES.get(path, len(LONGEST))
