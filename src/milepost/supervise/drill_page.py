"""Draw a drill as one page of HTML that needs nothing else: a lane for each run, and how RPO and RTO are spread. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from milepost.supervise.drill import Verdict
from milepost.supervise.drill_judge import Drilled
from milepost.text import plain

_WIDTH, _LEFT, _LANE = 900, 64, 26
_NICE = (1.0, 2.0, 5.0, 10.0)
_TITLES = {"end-differs": "the end differs", "generation-lost": "generations are lost", "not-recovered": "not recovered"}

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #59636e; --paper: #ffffff; --line: #d1d9e0;
  --run: #2f6fb2; --down: #b3261e; --again: #a86400; --on: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117; --line: #3d444d;
  --run: #5aa0e6; --down: #f47067; --again: #d9a13b; --on: #4cc38a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin-top: 2rem; }
code, td, th { font-variant-numeric: tabular-nums; } code { overflow-wrap: anywhere; }
svg { width: 100%; min-width: 44rem; height: auto; display: block; }
svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
.axis { stroke: var(--line); } .starting { fill: var(--line); } .run { fill: var(--run); }
.down { fill: none; stroke: var(--down); stroke-dasharray: 3 3; }
.again { fill: var(--again); } .on { fill: var(--on); } .save { stroke: var(--paper); }
.strike { stroke: var(--down); stroke-width: 2.5; fill: none; } .bound { stroke: var(--down); stroke-dasharray: 4 3; }
.dot { fill: var(--run); fill-opacity: .6; stroke: var(--run); }
table { border-collapse: collapse; width: 100%; }
td:nth-child(2) { min-width: 16rem; }
td, th { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
p { white-space: pre-wrap; }
.bad { color: var(--down); font-weight: 600; } .scroll { overflow-x: auto; }
"""


def page(verdict: Verdict, head: Sequence[str], facts: Sequence[str]) -> str:
    """Return the page. ``head`` are the lines that the terminal shows, ``facts`` what the numbers mean."""
    request, struck = verdict.request, [run for run in verdict.runs if run.struck]
    title = f"milepost drill {request.verb}"
    mark = "" if verdict.outcome == "recovered" else ' class="bad"'
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}: <span{mark}>{_text(_TITLES.get(verdict.kind, verdict.outcome))}</span></h1>",
        f"<p><code>{_text(' '.join(request.command) or 'the built-in sample')}</code></p>",
        *(f"<p>{_text(line)}</p>" for line in head),
    ]
    if struck:
        parts += ["<h2>Runs</h2>", *_wide([*_lanes(struck, verdict.undisturbed_s), _legend()])]
        bounds = request.bounds
        parts += [
            "<h2>Recovery time (RTO), seconds</h2>",
            *_wide(_dots([run.rto_s for run in struck], bounds.rto_s, "RTO in seconds")),
        ]
        parts += [
            "<h2>Work lost (RPO), steps</h2>",
            *_wide(_dots([run.rpo_steps for run in struck], bounds.rpo_steps, "RPO in steps")),
        ]
    parts += ["<h2>Each run</h2>", *_wide(["<table>", *_table(verdict.runs), "</table>"])]
    parts += ["<h2>What the numbers mean</h2>", *(f"<p>{_text(fact)}</p>" for fact in facts), "</body></html>", ""]
    return "\n".join(parts)


def _wide(parts: Iterable[str]) -> list[str]:
    """Return what is not squeezed on a narrow screen: there it is moved."""
    return ['<div class="scroll">', *parts, "</div>"]


def _text(text: str) -> str:
    return html.escape(plain(text))


def _lanes(runs: Sequence[Drilled], undisturbed_s: float) -> Iterator[str]:
    longest_s = max([undisturbed_s, *(run.marks[-1].at_s for run in runs if run.marks)]) or 1.0
    height = _LANE * (len(runs) + 1) + 24
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="When each run was struck, and when it went on">'
    yield from _axis(longest_s, height - 20, unit=" s")
    yield f'<text x="{_LEFT - 8}" y="{_LANE / 2 + 4}" text-anchor="end">alone</text>'
    yield _bar("run", 0, undisturbed_s, 0, longest_s, "left alone, from its start to its end")
    for row, run in enumerate(runs, 1):
        yield f'<text x="{_LEFT - 8}" y="{row * _LANE + _LANE / 2 + 4}" text-anchor="end">run {run.number}</text>'
        yield from _lane(run, row, longest_s)
    yield "</svg>"


def _lane(run: Drilled, row: int, longest_s: float) -> Iterator[str]:
    end_s = run.marks[-1].at_s if run.marks else run.at_s
    when = {mark.kind: mark.at_s for mark in run.marks if mark.kind != "saved"}
    on_s = when.get("trained", when.get("resumed", end_s))
    again_s = min(max(when.get("caught up", on_s), on_s), end_s)
    began_s = min(when.get("training", 0.0), run.at_s)
    yield _bar("starting", 0, began_s, row, longest_s, "starts")
    yield _bar("run", began_s, run.at_s, row, longest_s, "trains, until it is struck")
    yield _bar("down", run.at_s, on_s, row, longest_s, f"{on_s - run.at_s:.2f} s until it trained on")
    yield _bar("again", on_s, again_s, row, longest_s, "trains again what it had trained before")
    yield _bar("on", again_s, end_s, row, longest_s, "trains on")
    top = row * _LANE + 5
    for mark in run.marks:
        if mark.kind == "saved":
            x = _x(mark.at_s, longest_s)
            said = f"<title>saved step {mark.step:,}</title>"
            yield f'<line class="save" x1="{x}" x2="{x}" y1="{top + 9}" y2="{top + 16}">{said}</line>'
    x = _x(run.at_s, longest_s)
    yield f'<path class="strike" d="M{x - 5} {top + 3}l10 10m0 -10l-10 10"><title>{_text(run.what)}</title></path>'


def _bar(kind: str, from_s: float, to_s: float, row: int, longest_s: float, title: str) -> str:
    x, width = _x(from_s, longest_s), max(_x(to_s, longest_s) - _x(from_s, longest_s), 0.0)
    if width <= 0:
        return ""
    said = f"<title>{_text(title)}</title>"
    return f'<rect class="{kind}" x="{x}" y="{row * _LANE + 5}" width="{width:.1f}" height="16" rx="2">{said}</rect>'


def _legend() -> str:
    first = (("starting", "starts"), ("run", "trains"), ("down", "down, stopped or full"))
    names = (*first, ("again", "trains again what was lost"), ("on", "trains on"))
    parts = [f'<svg viewBox="0 0 {_WIDTH} 24" role="img" aria-label="What the colours mean">']
    x = _LEFT
    for kind, name in names:
        parts.append(f'<rect class="{kind}" x="{x}" y="5" width="22" height="14" rx="2"/><text x="{x + 28}" y="16">{name}</text>')
        x += 50 + 6 * len(name)
    parts.append(
        f'<path class="strike" d="M{x} 7l10 10m0 -10l-10 10"/><text x="{x + 18}" y="16">struck (notches: saves)</text></svg>'
    )
    return "".join(parts)


def _dots(values: Sequence[float | None], bound: float | None, label: str) -> Iterator[str]:
    known = sorted(value for value in values if value is not None)
    if not known:
        yield "<p>It could not be measured.</p>"
        return
    longest = max([*known, bound or 0.0]) or 10.0
    stacks: dict[int, int] = {}
    dots = []
    for value in known:
        column = round(_x(value, longest) / 9)
        stacks[column] = level = stacks.get(column, 0) + 1
        dots.append((column * 9, level, value))
    height = 9 * max(stacks.values()) + 36
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}, a dot for each run">'
    yield from _axis(longest, height - 20)
    for x, level, value in dots:
        yield f'<circle class="dot" cx="{x}" cy="{height - 22 - 9 * level + 3}" r="4"><title>{value:,.3g}</title></circle>'
    if bound is not None:
        at = _x(bound, longest)
        yield f'<line class="bound" x1="{at}" x2="{at}" y1="2" y2="{height - 20}"/>'
        yield f'<text x="{at - 4}" y="12" text-anchor="end">bound {bound:g}</text>'
    yield "</svg>"
    if len(known) < len(values):
        yield f"<p>Of {len(values) - len(known)} it could not be measured.</p>"


def _axis(longest: float, bottom: float, *, unit: str = "") -> Iterator[str]:
    step = _step(longest)
    for index in range(int(longest / step + 1e-9) + 1):
        x = _x(index * step, longest)
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{index * step:,.6g}{unit}</text>'


def _step(longest: float) -> float:
    """Return a round distance between the marks of an axis: five to ten of them.

    >>> _step(7.3), _step(0.9), _step(12000)
    (1.0, 0.1, 2000.0)
    """
    power = 10.0 ** (len(f"{int(longest)}") - 1) if longest >= 1 else 1.0
    while power * 5 > longest:
        power /= 10
    return next(power * nice for nice in _NICE if power * nice * 10 >= longest)


def _x(value: float, longest: float) -> float:
    return round(_LEFT + (_WIDTH - _LEFT - 16) * value / longest, 1)


def _table(runs: Sequence[Drilled]) -> Iterator[str]:
    heads = ("run", "what was done", "went on from", "RPO steps", "RPO s", "RTO s", "lost", "end")
    yield "<thead><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr></thead><tbody>"
    for run in runs:
        said = "; ".join((run.what or run.line, *run.problems, *run.notes))
        cells = [
            str(run.number),
            said,
            f"step {run.from_step:,}" if run.from_step is not None else "-",
            f"{run.rpo_steps:,}" if run.rpo_steps is not None else "-",
            f"{run.rpo_s:.2f}" if run.rpo_s is not None else "-",
            f"{run.rto_s:.2f}" if run.rto_s is not None else "-",
            "; ".join(run.lost) or "none",
            run.end,
        ]
        mark = "" if run.recovered else ' class="bad"'
        yield f"<tr{mark}>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody>"
