"""What may be set, and what is refused before anybody is let in. C5"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.errors import UsageError
from milepost.service.settings import ServiceSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "redis"),
        ("memory_bytes", -1),
        ("memory_keep_versions", 0),
        ("disk_keep_versions", 0),
        ("transport", "pigeon"),
        ("commit_timeout_s", 0),
        ("commit_timeout_s", float("inf")),
        ("fetch_timeout_s", -1),
        ("fetch_timeout_s", float("nan")),
        ("incremental_threshold", 1.5),
        ("incremental_threshold", "some"),
        ("heartbeat_s", 0),
        ("lease_s", 0),
        ("lease_s", 5.0),
        ("memory_bytes", "8GB"),
        ("memory_bytes", True),
        ("memory_keep_versions", 1.5),
        ("port", "80"),
        ("host", 5),
        ("host", ""),
        ("token", 7),
        ("tls_cert", 7),
        ("link_bytes_s", 0),
        ("port", 65536),
        ("bulk_port", -1),
        ("token", "short"),
        ("token", "with a newline in it\n"),
        ("tls_cert", "/not/there.pem"),
        ("tls_key", "/not/there.pem"),
        ("tls_ca", "/not/there.pem"),
        ("max_message_bytes", 10),
        ("max_calls", 0),
        ("memory_gigabytes", 3),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ServiceSettings.of({name: value})
    assert (caught.value.kind, caught.value.facts["setting"]) == ("bad-setting", name)
    assert caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_alone_needs_nothing_more(host: str) -> None:
    assert ServiceSettings(host=host, token=None).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "gpu-3.example"])
def test_other_machines_are_let_in_only_with_tls_and_a_token_or_where_that_is_asked_for(host: str, tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text("")
    tls = {"tls_cert": str(pem), "tls_key": str(pem)}
    for settings in ({}, {"token": None, **tls}):
        with pytest.raises(UsageError) as caught:
            ServiceSettings(host=host, **settings)  # type: ignore[arg-type]
        assert caught.value.kind == "insecure"
    assert ServiceSettings(host=host, **tls).token == ""  # type: ignore[arg-type]
    assert ServiceSettings(host=host, insecure=True, token=None).insecure


def test_a_certificate_without_its_key_and_an_authority_without_a_certificate_are_refused(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text("")
    for settings in ({"tls_cert": str(pem)}, {"tls_key": str(pem)}, {"tls_ca": str(pem)}):
        with pytest.raises(UsageError) as caught:
            ServiceSettings.of(settings)
        assert caught.value.kind == "bad-setting"


def test_what_may_be_in_memory_is_a_quarter_of_what_is_free_unless_it_is_said() -> None:
    assert ServiceSettings().core(1000).memory_bytes == 250
    core = ServiceSettings(
        memory_bytes=7, memory_keep_versions=2, disk_keep_versions=3, commit_timeout_s=1.5, heartbeat_s=1, lease_s=2
    ).core(1000)
    assert (core.memory_bytes, core.memory_keep, core.disk_keep) == (7, 2, 3)
    assert (core.commit_ns, core.lease_ns) == (1_500_000_000, 2_000_000_000)
