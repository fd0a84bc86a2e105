"""Look at a running service, or at what it has left: ``status``, ``top``; and let samplers go on: ``unhold``."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from milepost.cli import document
from milepost.cli.options import Time, need_service
from milepost.cli.text import duration, plain, width
from milepost.clock import Clock, SystemClock
from milepost.errors import ServiceError

if TYPE_CHECKING:
    from milepost.cli.service_text import Rates
    from milepost.service.asking import Reach
    from milepost.service.looking import Looked

_FILE = click.Path(dir_okay=False)
NOT_RUNNING = 1
"""What ``status`` ends with where nobody answers, though it has said all that it found."""


def how_to_reach(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how to speak to a service: ``token_file``, ``tls_ca``, ``tls_cert``, ``tls_key``."""
    for option in (
        click.option("--tls-key", type=_FILE, help="The key of that."),
        click.option("--tls-cert", type=_FILE, help="Speak TLS: who this is, where the service asks for that."),
        click.option("--tls-ca", type=_FILE, help="Speak TLS: PEM certificates of who has signed the service's."),
        click.option("--token-file", type=_FILE, help="Of a service that is named by its address. Else MILEPOST_SERVICE_TOKEN."),
    ):
        function = option(function)
    return function


def reach(where: str | None, token_file: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None) -> Reach:
    """Return where a service is, and how to speak to it, by what `how_to_reach` gives."""
    from milepost.service.asking import reach_of
    from milepost.service.client.target import Tls

    return reach_of(where, token_file=token_file, tls=Tls(tls_ca, tls_cert, tls_key) if tls_ca or tls_cert else None)


def of_a_service(function: Callable[..., int]) -> click.Command:
    """Make a verb that is about a service. It gets ``where`` and ``reach``, which says how to speak to it, and ``as_json``."""

    def command(
        where: str | None, token_file: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, **given: Any
    ) -> int:
        need_service()
        return function(reach=reach(where, token_file, tls_ca, tls_cert, tls_key), **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    # What is applied first comes last in the help: the options of the verb itself are the first.
    click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")(command)
    how_to_reach(command)
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(command)
    vars(command)["__click_params__"] += vars(function).get("__click_params__", [])
    return click.command()(click.argument("where", required=False, metavar="[ROOT|HOST:PORT]")(command))


@of_a_service
def status(reach: Reach, as_json: bool) -> int:
    """Show what a checkpoint service has, and who reads what.

    Which weights are live, which are durable, where they lie, who is how far behind, what is on its way, who holds. Where none
    answers, what it has left is read, and nothing is changed; then it ends with 1.
    """
    from milepost.service.looking import look

    clock = SystemClock()
    looked = look(reach, clock)
    _show(looked, reach, clock, as_json=as_json)
    return 0 if looked.standing.serving is not None else NOT_RUNNING


@of_a_service
@click.option(
    "--interval", "interval_s", metavar="TIME", type=Time(), default="2s", show_default=True, help="Look again after so long."
)
@click.option("--once", is_flag=True, help="Look twice, print once, and end. So does what is no terminal.")
def top(reach: Reach, as_json: bool, interval_s: float, once: bool) -> int:
    """Show a checkpoint service again and again, and what moves.

    What status shows, until Ctrl-C.
    """
    clock, pause = SystemClock(), threading.Event().wait
    looks = _looks(reach, clock, lambda: pause(interval_s))
    if once or as_json or not sys.stdout.isatty():
        next(looks)
        looked, rates = next(looks)
        _show(looked, reach, clock, rates, as_json=as_json)
        return 0 if looked.standing.serving is not None else NOT_RUNNING
    with _screen(sys.stdout) as draw:
        for looked, rates in looks:
            draw(_lines(looked, reach, clock, rates))
    return 0


@of_a_service
def unhold(reach: Reach, as_json: bool) -> int:
    """Let samplers go on whom a trainer holds back.

    They get what is live. A trainer holds while it brings a checkpoint back, and says itself when that is done. This is for one
    that will not come.
    """
    from milepost.service.asking import Asking
    from milepost.service.core.events import Caller

    with Asking(reach) as asking:
        before = asking.standing()
        holding = [each for each in before.components if each.component in before.held_by.split(", ")]
        for each in holding:
            asking.resume(Caller(each.component, each.incarnation))
        after = asking.standing()
    if after.held_by:
        hint = "milepost status says who; it has begun meanwhile, perhaps"
        raise ServiceError("sampling is held still", kind="held", hint=hint, by=after.held_by)
    live = f"{after.live.at} (step {after.live.version.step:,})" if after.live else "the first version"
    if as_json:
        fields = {"unheld": [each.component for each in holding], "live": str(after.live.at) if after.live else None}
        click.echo(document.encode("unhold", reach.where, fields))
        return 0
    for each in holding:
        heard = "" if each.silent_s is None else f" (it was heard of {duration(each.silent_s)} ago)"
        click.echo(f"{plain(each.component)} holds no more{heard}")
    click.echo(f"samplers go on with {live}" if holding else f"nobody holds; samplers get {live}")
    return 0


def _looks(reach: Reach, clock: Clock, pause: Callable[[], object]) -> Iterator[tuple[Looked, Rates | None]]:
    """Look again and again, with what has moved since the look before. A service that is gone meanwhile may come back."""
    from milepost.cli.service_text import Rates
    from milepost.service.looking import look

    before, then_ns = look(reach, clock), clock.monotonic_ns()
    yield before, None
    while True:
        pause()
        now, now_ns = look(reach, clock, before), clock.monotonic_ns()
        yield now, Rates.between(before.standing.counts, now.standing.counts, (now_ns - then_ns) / 1e9)
        before, then_ns = now, now_ns


def _show(looked: Looked, reach: Reach, clock: Clock, rates: Rates | None = None, *, as_json: bool) -> None:
    from milepost.cli.service_document import of_standing

    if as_json:
        click.echo(document.encode("service", reach.where, of_standing(looked.standing, rates)))
    else:
        click.echo("\n".join(_lines(looked, reach, clock, rates)))


def _lines(looked: Looked, reach: Reach, clock: Clock, rates: Rates | None) -> list[str]:
    from milepost.cli.service_text import lines_of

    return lines_of(looked.standing, reach.where, clock.wall_ns(), looked.rest, rates, looked.advice, is_over=looked.is_over)


@contextmanager
def _screen(stream: TextIO) -> Iterator[Callable[[list[str]], None]]:
    """Draw lines over those before, on a screen of its own; what was drawn last stays behind when Ctrl-C ends it."""
    last: list[str] = []

    def draw(lines: list[str]) -> None:
        last[:] = lines
        columns, rows = shutil.get_terminal_size()
        shown = lines if len(lines) < rows else [*lines[: rows - 2], f"... {len(lines) - rows + 2} more lines"]
        stream.write("\x1b[H" + "".join(f"{cut(line, columns - 1)}\x1b[K\r\n" for line in shown) + "\x1b[J")
        stream.flush()

    stream.write("\x1b[?1049h")
    try:
        yield draw
    except KeyboardInterrupt:
        pass
    finally:
        stream.write("\x1b[?1049l" + "".join(f"{line}\n" for line in last))
        stream.flush()


def cut(line: str, columns: int) -> str:
    """Return as much of a line as fits: one that wraps would move all below it."""
    while width(line) > columns:
        line = line[: columns - (width(line) - len(line))] if len(line) > columns else line[:-1]
    return line
