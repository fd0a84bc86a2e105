"""What lies beside the protocol is what it says now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from milepost.service.proto import service_pb2 as pb
from tests.service.proto.generate import GENERATOR, PROTO, SRC, generate

HERE = (SRC / PROTO).parent
PROJECT = (SRC.parent / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the generator that is installed makes of the protocol: a newer one may write it in other words."""
    into = tmp_path_factory.mktemp("made")
    generate(into, f"--descriptor_set_out={into / 'set'}")
    return into


def test_the_messages_are_those_of_the_protocol(made: Path) -> None:
    (expected,) = FileDescriptorSet.FromString((made / "set").read_bytes()).file
    said = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(said)
    # Names in JSON follow from the others, and only one of the two has them.
    without = [re.sub(r" *json_name: .*\n", "", str(file)) for file in (said, expected)]
    assert without[0] == without[1], "make proto"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("service_pb2_grpc.py", r"'/milepost[\w./]+'|\w+\.(?:SerializeToString|FromString)|(?:unary|stream)_(?:unary|stream)\b"),
        ("service_pb2.pyi", r"^class \w+|^    \w+: \S+$|^    __slots__ = .*$"),
    ],
    ids=["calls", "types"],
)
def test_the_calls_and_the_types_are_those_of_the_protocol(made: Path, name: str, words: str) -> None:
    said, expected = (
        re.findall(words, (where / name).read_text(encoding="utf-8"), re.MULTILINE) for where in (HERE, (made / PROTO).parent)
    )
    assert len(expected) > 100
    assert said == expected, "make proto"


def test_the_code_runs_with_all_that_the_package_says_it_runs_with() -> None:
    code = (HERE / "service_pb2.py").read_text(encoding="utf-8")
    runtime = re.search(r"# Protobuf Python Version: (\S+)", code)
    assert runtime is not None
    assert f'"protobuf>={runtime[1]}"' in PROJECT
    assert f"GRPC_GENERATED_VERSION = '{GENERATOR}'" in (HERE / "service_pb2_grpc.py").read_text(encoding="utf-8")
    assert f'"grpcio>={GENERATOR}"' in PROJECT
