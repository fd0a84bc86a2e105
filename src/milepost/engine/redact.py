"""Take secrets out of text that is going to be kept: command lines, events, what errors say (B19).

What looks like a secret is replaced by ``***``: a name that says so with its value, a password in a URL, a token of a known
form, and the value of every environment variable with such a name, wherever it turns up. Too much is hidden rather than too
little. It is a net and no proof: a password among words, on a command line, looks like a word.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

HIDDEN = "***"
_LEAST = 6
"""An environment's values shorter than this are not looked for: they would be found inside of words."""

_NAMES = (
    r"token|secret|passw|passphrase|pwd|api[-_]?key|access[-_]?key|private[-_]?key|account[-_]?key|credential|auth|bearer|cookie"
    r"|signature|hmac"
)
_SECRET = re.compile(rf"(?i){_NAMES}|(?:^|[-_.])(?:key|pat|pass|sas|sig)(?:$|[-_.\d])")
_NOT_ITSELF = re.compile(r"(?i)(?:file|path|dir|sock|socket|name)$")
_WORKING_DIRECTORIES = ("PWD", "OLDPWD")
"""Variables of the shell's own. Hidden, they would take the run root's path out of every message."""
_SHORT = ("-p", "-P", "-k", "-t")
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
# Possessive, and begun where a word begins: these read what others wrote, and must not take the square of its length.
_NAME = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[:=]\s*+")
_VALUE = re.compile(r"(?i:(?:bearer|basic|token)\s++)?(?:\"[^\"]*+\"?|'[^']*+'?|[^\s,;&'\"})\]]*[^\s,;&'\"})\]:])")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}")
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,}|ASIA[A-Z0-9]{12,}"
    r"|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_OPAQUE = re.compile(r"(?<![A-Za-z0-9])(?=(?:[A-Za-z]*\d){3})(?=\d*[A-Za-z])[A-Za-z0-9+/]{20,}={0,2}(?![A-Za-z0-9])")
"""A run of letters and digits that is no word: for command lines, where nobody needs it. Digests and ids look the same."""


def redacted(text: str) -> str:
    """Return ``text`` without what looks like a secret, and as text that a record can hold: arguments may be any bytes.

    >>> redacted("could not reach https://ada:hunter2@host/x?sig=Zm9v: api_key=abc")
    'could not reach https://***@host/x?sig=***: api_key=***'
    """
    return _redacted(text, _known())


def _redacted(text: str, known: Sequence[str]) -> str:
    if len(text) < _LEAST and text.isascii() and text.replace(".", "", 1).isalnum():
        return text  # a number: nothing that is looked for fits into it
    for value in known:
        text = text.replace(value, HIDDEN)
    text = _PEM.sub(HIDDEN, _TOKEN.sub(HIDDEN, _USERINFO.sub(f"{HIDDEN}@", text)))
    safe = _BEARER.sub(rf"\1 {HIDDEN}", "".join(_without_named(text)))
    return safe.encode(errors="backslashreplace").decode()


def _without_named(text: str) -> Iterator[str]:
    """Yield ``text`` with the value behind each name that says it is a secret hidden; a value may hold names of its own."""
    shown = at = 0
    while found := _NAME.search(text, at):
        at = found.end()
        value = _VALUE.match(text, at) if _SECRET.search(found[1]) else None
        if value:
            yield text[shown:at]
            yield HIDDEN
            shown = at = value.end()
    yield text[shown:]


class _Redact(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        safe = redacted(text)
        if safe != text:
            record.msg, record.args = safe, ()
        return True


_filter = _Redact()


def redact_the_log() -> None:
    """Let no line that milepost logs hold a secret: what an error quotes is not milepost's to choose."""
    logging.getLogger("milepost").addFilter(_filter)


def redacted_facts(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of an event with every text in them redacted; what is no text, list or dict stays as it is."""
    known = _known()  # once for all of them: to look through the environment takes longer than the rest

    def safe(value: object) -> object:
        if isinstance(value, str):
            return _redacted(value, known)
        if isinstance(value, Mapping):
            return {key: safe(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [safe(inner) for inner in value]
        return value

    return {name: safe(fact) for name, fact in facts.items()}


def without_secrets(arguments: Sequence[str]) -> str:
    """Return a command line for people, with the values of what looks like a secret replaced by ``***``.

    >>> without_secrets(["python", "train.py", "--api-key", "abc", "--token=xyz", "s3://user:pass@host/b"])
    "python train.py --api-key '***' '--token=***' 's3://***@host/b'"
    >>> without_secrets(["run", "--config=db.password=hunter2", "--header", "Authorization: Bearer abc"])
    "run '--config=db.password=***' --header 'Authorization: ***'"
    """
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        # A value may begin with a dash: behind an option that says it is a secret nothing is shown but another option.
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        shown.append(_OPAQUE.sub(HIDDEN, redacted(argument)))
        hide_next = _names_a_secret(argument)
    return shlex.join(shown)


def _names_a_secret(argument: str) -> bool:
    if argument in _SHORT:
        return True
    return (
        argument.startswith("--") and "=" not in argument and bool(_SECRET.search(argument)) and not _NOT_ITSELF.search(argument)
    )


def _known() -> list[str]:
    """Return the values in the environment whose names say that they are secrets, longest first: one may contain another."""
    # Each value that is looked at is decoded: only those that matter.
    values = {os.environ.get(name, "").strip() for name in os.environ if _is_secret(name)}
    return sorted((value for value in values if len(value) >= _LEAST), key=len, reverse=True)


@lru_cache(maxsize=4096)
def _is_secret(variable: str) -> bool:
    return bool(_SECRET.search(variable)) and not _NOT_ITSELF.search(variable) and variable not in _WORKING_DIRECTORIES
