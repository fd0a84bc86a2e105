"""Say how much the service keeps, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Say how much is kept, and how long somebody is waited for."""

    memory_bytes: int
    """What all versions in memory may take, with those that readers still map and those on their way. What does not fit is
    brought to disk instead."""
    memory_keep: int = 1
    """How many of the newest versions stay in memory, also once they are on disk."""
    disk_keep: int = 5
    """How many of the newest stay on disk."""
    lease_ns: int = 60 * 10**9
    """For how long a reader keeps a version after it was heard of last."""
    commit_ns: int = 120 * 10**9
    """For how long a commit waits for its next part."""
    retry_ns: int = 5 * 10**9
    """When what the disk refused is tried again."""

    def __post_init__(self) -> None:
        least = {"memory_bytes": 0, "memory_keep": 1, "disk_keep": 1, "lease_ns": 1, "commit_ns": 1, "retry_ns": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise UsageError(
                    "the service cannot work with this setting",
                    kind="bad-setting",
                    hint=f"{name} is at least {lowest}",
                    setting=name,
                    value=getattr(self, name),
                )
