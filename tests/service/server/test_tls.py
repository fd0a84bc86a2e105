"""Over TLS nobody listens in, nobody comes in who should not, and a client knows whom it speaks with. C5"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from milepost.errors import UsageError
from milepost.service.settings import ServiceSettings
from tests.service.server.conftest import Hall
from tests.service.server.speaking import Speaker
from tests.service.server.test_calls import DATA

EXTENSIONS = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an authority, a server and a client it has signed, and a stranger that signed itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    where = tmp_path_factory.mktemp("keys")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=where, check=True, capture_output=True)

    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    for name in ("ca", "stranger"):
        run("req", "-x509", *kind, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", EXTENSIONS)
    (where / "extensions").write_text(EXTENSIONS)
    for name in ("server", "client"):
        run("req", *kind[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", "extensions")
        run("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return where


def settings(keys: Path, **more: str) -> ServiceSettings:
    return ServiceSettings(
        memory_bytes=1 << 20, tls_cert=str(keys / "server.pem"), tls_key=str(keys / "server.key"), host="0.0.0.0", **more
    )


def speaker(hall: Hall, keys: Path, authority: str, who: str | None = None, token: str | None = None) -> Speaker:
    port = hall.server.endpoint.port
    pair = (None, None) if who is None else tuple((keys / f"{who}.{end}").read_bytes() for end in ("key", "pem"))
    credentials = grpc.ssl_channel_credentials((keys / f"{authority}.pem").read_bytes(), *pair)
    speaker = Speaker(f"127.0.0.1:{port}", token or hall.server.token, "trainer", credentials=credentials)
    speaker.waits = False
    return speaker


def test_who_trusts_the_servers_authority_and_knows_the_token_speaks_with_it(hall: Hall, keys: Path) -> None:
    hall.serve(settings(keys))
    assert hall.server.endpoint.is_tls
    with speaker(hall, keys, "ca") as trainer:
        trainer.hello()
        done = trainer.commit("k", 1, {"weights": DATA})
        assert trainer.download(done.weights) == DATA
    with speaker(hall, keys, "stranger") as other, pytest.raises(grpc.RpcError) as caught:
        other.hello()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    with speaker(hall, keys, "ca", token="not-the-token-of-it") as other, pytest.raises(grpc.RpcError) as caught:
        other.hello()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    with Speaker(f"127.0.0.1:{hall.server.endpoint.port}", hall.server.token, "trainer") as plain:
        plain.waits = False
        with pytest.raises(grpc.RpcError) as caught:
            plain.hello()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_where_callers_need_a_certificate_only_those_with_one_come_in(hall: Hall, keys: Path) -> None:
    hall.serve(settings(keys, tls_ca=str(keys / "ca.pem")))
    with speaker(hall, keys, "ca", "client") as trainer:
        trainer.hello()
    for who in (None, "stranger"):
        with speaker(hall, keys, "ca", who) as other, pytest.raises(grpc.RpcError) as caught:
            other.hello()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_the_bulk_port_speaks_tls_too(hall: Hall, keys: Path) -> None:
    hall.serve(settings(keys))
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", hall.server.endpoint.bulk_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        assert secured.version() in ("TLSv1.2", "TLSv1.3")


def test_a_certificate_that_is_none_is_an_error_before_anybody_comes(hall: Hall, tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text("no certificate")
    with (
        pytest.raises(UsageError) as caught,
        hall.life(ServiceSettings(memory_bytes=1, tls_cert=str(pem), tls_key=str(pem))),
    ):
        pass
    assert caught.value.kind == "bad-setting"
