"""Find in what a program has printed why it ended. Pure, and fast whatever it printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from milepost.text import plain

TAIL_CHARACTERS = 64 << 10
"""Of what was printed the last is looked at: a cause stands at the end, and a run of weeks prints gigabytes."""

_LAST_LINES = 80

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RANK = re.compile(r"^\[(?:rank|default)?\d{1,6}\]: ?", re.MULTILINE)
"""What torch and torchrun put before each line of a rank."""
_TRACEBACK = "Traceback (most recent call last)"
_DIRECT_CAUSE = "The above exception was the direct cause"
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$")
_WORKER = re.compile(r"^Process \S{1,80}:$", re.MULTILINE)

# The first row that matches wins, so what is certain stands before what is only likely: a failing device takes NCCL with it,
# and a peer that is gone shows as a closed connection.
_ROWS: dict[str, tuple[str, ...]] = {
    "device-memory": (
        r"OutOfMemoryError",
        r"(?:CUDA|HIP|XPU)(?: error:)? out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        r"RESOURCE_EXHAUSTED: Out of memory",
    ),
    "device-assert": (r"device-side assert",),
    "device": (
        r"(?:CUDA|HIP)(?: driver| unknown)? error",
        r"\bXid\b|ECC error|uncorrectable ECC",
        r"\bcudaError[A-Z]|CUBLAS_STATUS_|CUDNN_STATUS_",
        r"GPU is lost|fallen off the bus|No CUDA GPUs are available|no CUDA-capable device",
    ),
    "nccl": (
        r"Watchdog caught collective operation timeout|ProcessGroupNCCL",
        r"\bNCCL (?:error|WARN)|NCCL operations have failed|\bnccl\w{1,30}Error",
        r"DistBackendError",
    ),
    "disk-full": (r"No space left on device|Disk quota exceeded|\bENOSPC\b|\bEDQUOT\b",),
    "stale": (r"Stale (?:NFS )?file handle|\bESTALE\b",),
    "read-only": (r"Read-only file system|\bEROFS\b",),
    "shared-memory": (r"insufficient shared memory|unable to (?:open|mmap|allocate) shared memory",),
    "memory": (
        r"\bMemoryError\b|std::bad_alloc|Cannot allocate memory|can't allocate memory",
        r"Unable to allocate \S+ \S+ for an array",
    ),
    "connection": (
        r"Connection(?:Reset|Refused|Aborted)?Error\b|BrokenPipeError",
        r"Connection (?:reset|refused|closed|timed out|aborted)|Transport endpoint is not connected",
        r"No route to host|Network is unreachable|Name or service not known|Temporary failure in name resolution",
        r"Rendezvous\w{0,20}Error|Dist(?:Network|Store)Error|TCPStore",
        r"\bgloo\b.{0,200}(?:[Tt]imed? ?out|closed|[Cc]onnect)|[Ss]ocket ?[Tt]ime(?:d )?out",
        r"(?:Read|Connect)Timeout|\bUNAVAILABLE: ",
    ),
    "io": (r"Input/output error|Remote I/O error|\bEIO\b",),
    "permission": (r"^milepost\.errors\.StoreError: could not .{0,80}: (?:Permission denied|Operation not permitted)",),
    "import": (
        r"^(?:ImportError|ModuleNotFoundError): ",
        r": error while loading shared libraries: |undefined symbol: ",
    ),
    "syntax": (r"^(?:SyntaxError|IndentationError|TabError): ",),
    "not-started": (r": can't open file '|: No module named |: command not found",),
    "usage": (
        r"^[Uu]sage: ",
        r": error: (?:the following arguments|unrecognized arguments|argument )",
    ),
}
SYMPTOMS = {kind: re.compile("|".join(patterns), re.MULTILINE) for kind, patterns in _ROWS.items()}

DEAD_WORKER = re.compile(
    r"DataLoader worker \(pid\(s\)|worker.{0,80}(?:is )?killed by signal|BrokenPipeError|EOFError|ConnectionReset|exitcode: -9"
)
"""What a trainer says whose worker process has gone."""


def readable(printed: bytes) -> str:
    r"""Return the last of what a program has printed as text: any encoding, no colours, of a progress bar its last state.

    >>> readable(b"\x1b[31mRuntimeError\x1b[0m: caf\xe9\n10%\r20%\r30%\n").splitlines()
    ['RuntimeError: caf\\xe9', '30%']
    """
    tail = printed[-4 * TAIL_CHARACTERS :]
    if tail.count(0) > len(tail) // 4:  # two bytes a character
        tail = tail.replace(b"\0", b"")
    return cleaned(tail.decode("utf-8", "backslashreplace"))


def cleaned(text: str) -> str:
    """Return the last of a text without colours, and of lines that were written over what was last seen."""
    text = _ANSI.sub("", text[-2 * TAIL_CHARACTERS :])[-TAIL_CHARACTERS:]
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _RANK.sub("", "\n".join(lines))


def symptom(text: str) -> str:
    """Return the kind of what a cleaned text speaks of; empty if of nothing that is known."""
    return next((kind for kind, pattern in SYMPTOMS.items() if pattern.search(text)), "")


def line_of(kind: str, text: str) -> str:
    """Return the line of a text that speaks of a kind, as it may be shown."""
    found = SYMPTOMS[kind].search(text)
    if found is None:
        return ""
    start, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
    return shown(text[max(start, found.start() - 200) : None if end < 0 else end])


def exceptions(text: str) -> Iterator[tuple[str, str]]:
    """Yield type and message of each exception that a cleaned text shows a traceback of, in its order."""
    for block in text.split(_TRACEBACK)[1:]:
        lines = block.split("\n")[1:]
        for line in lines:
            # Frames are indented; the first line that is not is the exception.
            if line[:1].isspace() or not line:
                continue
            if found := _EXCEPTION.match(line[:4000]):
                yield found[1], found[2] or ""
            break


def chained(text: str) -> Iterator[str]:
    """Yield type and message of each exception that a cleaned text calls the direct cause of the last one, the nearest first."""
    blocks = text.split(_TRACEBACK)[1:]
    for block in reversed(blocks[:-1]):
        if _DIRECT_CAUSE not in block:
            return
        yield from (": ".join(each) for each in exceptions(_TRACEBACK + block))


def of_a_worker(text: str) -> tuple[str, str] | None:
    """Return type and message of the first exception that a worker process of the program died of, if one is shown."""
    if (found := _WORKER.search(text)) is None:
        return None
    return next(exceptions(text[found.start() :]), None)


def ending(text: str) -> str:
    """Return the last lines: what a program ends with, and what it prints on its way out."""
    return "\n".join(text.split("\n")[-_LAST_LINES:])


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return shown(next((line for line in reversed(text.split("\n")) if line.strip()), ""))


def shown(text: str, most: int = 300) -> str:
    """Return a text as one line that may be printed, and not a long one."""
    line = plain(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most else line[: most - 1] + "…"
