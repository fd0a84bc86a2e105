"""Make what lies beside ``service.proto`` out of it: ``make proto``, in an environment of its own.

Generated code runs with the protobuf that made it and with later ones, up to the next major version, never with an earlier one.
So an old generator makes it, whose code runs beside what else a trainer has installed; what is developed with may be newer.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

GENERATOR = "1.72.2"
SRC = Path(__file__).resolve().parents[3] / "src"
PROTO = "milepost/service/proto/service.proto"


def generate(into: Path, *more: str) -> None:
    """Let protoc write what it makes below ``into``."""
    out = [f"--{what}_out={into}" for what in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", *out, *more, PROTO], check=True, cwd=SRC)


if __name__ == "__main__":
    if version("grpcio-tools") != GENERATOR:
        sys.exit(f"this is made with grpcio-tools {GENERATOR}, not {version('grpcio-tools')}: make proto")
    generate(SRC)
