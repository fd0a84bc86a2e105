"""Every rule's case: which switch to turn off, who runs, what breaks then. `test_model.py` and `run.py` read it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import mirror
import proto
import reset
from core import State, explore
from proto import env, new_writer, old_writer, pinner, reader

Process = tuple[str, Callable, int]


@dataclass(frozen=True)
class Case:
    """A scenario that must hold with the rules as they are, and, if it has an `off`, break without one of them.

    `breaks` starts the name of a violation that must be among those found. `switches` bounds how often the explorer
    goes from one process that could go on to another; None means every interleaving. `deep` is the same
    for the long run.
    """

    family: str
    name: str
    who: Callable[[object], list[Process]]
    off: dict = field(default_factory=dict)
    both: dict = field(default_factory=dict)
    breaks: str = ""
    start: Callable[[], State] | None = None
    switches: int | None = None
    deep: int | None = None
    rules: type = proto.V
    check: Callable = proto.check
    terminal: Callable | None = None

    @property
    def world(self) -> tuple:
        """What the search with all rules on depends on: cases that differ in `off` alone share it."""
        return (self.rules, self.who, repr(self.both), self.start, self.switches, self.deep)

    def explore(
        self, off: bool, max_states: int, max_s: float, deep: bool = False, until: str | None = None
    ) -> tuple[dict, dict]:
        """Return the violations found, each with its shortest trace, and the statistics of the search."""
        v = self.rules(**{**self.both, **(self.off if off else {})})
        start = self.start() if self.start else (reset.initial(v) if self.rules is reset.R else proto.initial())
        switches = self.deep if deep else self.switches
        return explore(
            v,
            self.who(v),
            start,
            self.check,
            stop=99,
            max_sw=switches,
            max_states=max_states,
            max_s=max_s,
            terminal=self.terminal,
            until=until,
        )


def old(v, *plan: str) -> Process:
    return ("A", old_writer(v, *plan), 0)


def new(v, who: str, *plan: str) -> Process:
    return (who, new_writer(v, who, *plan), 0)


def read(v) -> Process:
    return ("R", reader(v), 0)


def pin(v) -> Process:
    return ("P", pinner(v, 1), 0)


def damage(*least: int) -> Process:
    return ("E", env(*[("damage", n) for n in least]), 0)


def rot(*names: str) -> Process:
    return ("E", env(*[("rot", n) for n in names]), 0)


def damaged_head() -> State:
    s = proto.initial()
    return s._replace(files=frozenset((n, "rot" if n == "b1.2" else x) for n, x in s.files))


def lost() -> State:
    return proto.initial(lost=1)


def delayed() -> State:
    return proto.initial(delayed=1)


def lost_and_delayed() -> State:
    return proto.initial(lost=1, delayed=1)


def text(**kw) -> dict:
    return {k: getattr(proto.TEXT(**kw), k) for k in vars(proto.TEXT(**kw))}


ORIGINAL = [
    Case(
        "original",
        "V1 fence first, then list",
        lambda v: [old(v, "save"), new(v, "B", "rollback")],
        off=text(),
        breaks="I5 ",
    ),
    Case(
        "original",
        "V3 a reader lists generations first",
        lambda v: [old(v, "save"), new(v, "B"), read(v)],
        off={"read_order": "terms_gens"},
        breaks="R1",
    ),
    Case(
        "original",
        "V4 lower terms are sealed",
        lambda v: [old(v, "save"), new(v, "B"), new(v, "C")],
        off={"claim": "noseal"},
        breaks="I5b",
    ),
    Case(
        "original",
        "V5 void above the head",
        lambda v: [old(v, "save"), new(v, "B", "save"), new(v, "C")],
        off={"boundary": "maxseen"},
        breaks="I4",
        switches=3,
    ),
    Case(
        "original",
        "V6 next is recorded",
        lambda v: [old(v, "save"), new(v, "B"), new(v, "C"), new(v, "D"), new(v, "E", "save")],
        off={"nextnum": "seen"},
        breaks="I1",
        switches=1,
    ),
    Case(
        "original",
        "V7 manifests name what they keep",
        lambda v: [old(v, "save"), new(v, "B", "save", "save")],
        off={"drop": "retired"},
        both={"keep_n": 1},
        breaks="I4",
        start=lost,
    ),
    Case(
        "original",
        "V8 a void occupant is skipped",
        lambda v: [old(v, "save"), new(v, "B", "save")],
        off={"occupied": "conflict"},
        breaks="L1",
    ),
    Case(
        "original",
        "V9 sweep after the fence",
        lambda v: [old(v, "save"), new(v, "B")],
        off={"sweep_when": "before", "claim": "list_first"},
        breaks="I",
    ),
    Case(
        "original",
        "V10 the number of an unknown outcome",
        lambda v: [old(v, "save", "save")],
        off={"failed_number": "skip"},
        both={"on_lost": "fail"},
        breaks="I2",
        start=delayed,
    ),
    Case(
        "original",
        "V10 its blobs stay",
        lambda v: [old(v, "save", "save")],
        off={"cleanup": True},
        both={"on_lost": "fail"},
        breaks="I4",
        start=delayed,
    ),
    Case(
        "original",
        "V11 blob names are never used twice",
        lambda v: [old(v, "save=X", "save=Y", "save=Z", "save=X")],
        off={"names": "content"},
        both={"keep_n": 1},
        breaks="I4",
        start=delayed,
    ),
    Case(
        "original",
        "V12 a trim before deleting",
        lambda v: [old(v, "save"), new(v, "B", "rollback")],
        off={"pressure": "before"},
        breaks="I1",
    ),
    Case(
        "original",
        "V13 pins are held",
        lambda v: [old(v, "save"), pin(v), new(v, "B", "rollback")],
        off={"pins": "recheck"},
        both={"pins": "held"},
        breaks="I4",
        deep=None,
    ),
    Case(
        "original",
        "V14 terms/ is synced",
        lambda v: [old(v, "save"), new(v, "B", "save"), ("D", new_writer(v, "D", "save"), 1)],
        off={"term_fsync": False},
        both={"posix": True, "max_crashes": 1},
        breaks="T1",
        switches=1,
        deep=2,
    ),
    Case(
        "original",
        "V15 pollers list",
        lambda v: [old(v, "save"), new(v, "B", "save", "save")],
        off={"poll": "probe"},
        breaks="R4",
        terminal=proto.terminal,
    ),
]

BASE = [
    Case(
        "base",
        "a base is live, not merely there",
        lambda v: [old(v, "save"), new(v, "B", "resume", "save"), damage(2)],
        off={"base_from": "nonvoid"},
        both={"keep_n": 1, "sweep_when": "none"},
        breaks="I4",
    ),
    Case(
        "base",
        "a generation names the blobs of its base",
        lambda v: [old(v, "save"), new(v, "B", "resume", "save")],
        off={"base_names": "head"},
        start=damaged_head,
        breaks="F3",
    ),
    Case(
        "base",
        "a trim publishes the base again",
        lambda v: [old(v, "save"), new(v, "B", "resume", "trim", "save")],
        off={"trim": "head"},
        start=damaged_head,
        breaks="F3",
    ),
    Case(
        "base",
        "after a change of base the old head's list is kept",
        lambda v: [old(v, "save"), new(v, "B", "never", "save", "save")],
        off={"base_keep": "plain"},
        breaks="N1",
    ),
    Case(
        "base",
        "a second damaged head is survived",
        lambda v: [new(v, "B", "resume", "save"), damage(3), new(v, "C", "resume")],
        off={"base_keep": "plain"},
        both={"last_resort": True},
        start=damaged_head,
        breaks="F2",
    ),
    Case(
        "base",
        "a claimer falls back along the line",
        lambda v: [new(v, "B", "oldest", "save"), damage(3), new(v, "C", "resume", "save")],
        off={"fallback": "newest"},
        breaks="F1",
    ),
    Case(
        "base",
        "a reader does not fall back behind `never`",
        lambda v: [new(v, "B", "never", "save"), damage(3), read(v)],
        off={"fallback": "newest"},
        breaks="F1",
    ),
    Case(
        "base",
        "a load after an unknown outcome decides the base",
        lambda v: [new(v, "B", "save", "never", "save")],
        off={"late_base": "always"},
        both={"on_lost": "fail"},
        start=delayed,
        breaks="F4",
    ),
]
for how in ("resume", "oldest", "never"):
    BASE += [
        Case(
            "base",
            f"wide, {how}: A, B, C, two damages",
            lambda v, h=how: [
                old(v, "save", "save"),
                new(v, "B", h, "save", "save"),
                damage(2, 3),
                new(v, "C", "resume", "save"),
            ],
            switches=1,
            deep=3,
        ),
        Case(
            "base",
            f"wide, {how}: with a reader",
            lambda v, h=how: [
                old(v, "save"),
                new(v, "B", h, "save"),
                damage(2),
                new(v, "C", "resume", "save"),
                read(v),
            ],
            switches=1,
            deep=2,
        ),
        Case(
            "base",
            f"wide, {how}: with a pin and a rollback",
            lambda v, h=how: [old(v, "save"), new(v, "B", h, "save", "rollback"), damage(2), pin(v)],
            both={"pins": "held"},
            switches=2,
            deep=4,
        ),
        Case(
            "base",
            f"wide, {how}: lost and late requests, a trim",
            lambda v, h=how: [old(v, "save"), new(v, "B", h, "save", "trim", "save"), damage(2)],
            both={"on_lost": "fail"},
            start=lost_and_delayed,
            switches=1,
            deep=3,
        ),
        Case(
            "base",
            f"wide, {how}: keep 1",
            lambda v, h=how: [
                old(v, "save", "save"),
                new(v, "B", h, "save", "rollback"),
                damage(2),
                new(v, "C", h, "save"),
            ],
            both={"keep_n": 1},
            switches=1,
            deep=3,
        ),
    ]

ROT = [
    Case(
        "rot",
        "nothing below an unreadable head is reused",
        lambda v: [old(v, "save"), new(v, "B", "oldest", "save"), rot("m3")],
        off={"rot_unsure": False},
        both={"keep_n": 1},
        breaks="I4",
    ),
    Case(
        "rot",
        "nor rolled back to by name",
        lambda v: [old(v, "save"), new(v, "B", "rollback"), rot("m3")],
        off={"rot_unsure": False},
        breaks="I4",
    ),
    Case(
        "rot",
        "nor pinned",
        lambda v: [old(v, "save"), pin(v), rot("m3")],
        off={"rot_unsure": False},
        both={"pins": "held"},
        breaks="P1",
    ),
    Case(
        "rot",
        "a settlement remembers it, after an operator dropped the record",
        lambda v: [old(v, "save"), rot("m3"), new(v, "D", "drop"), new(v, "C", "rollback")],
        off={"rot_unsure": "seen"},
        breaks="I4",
        switches=3,
        deep=4,
    ),
    Case(
        "rot",
        "what an unreadable manifest may name is spared",
        lambda v: [old(v, "save", "save"), new(v, "B", "resume", "save"), rot("m3")],
        off={"rot_spare": False},
        breaks="S1",
    ),
    Case(
        "rot",
        "an unreadable manifest is no rubbish",
        lambda v: [new(v, "B"), new(v, "C", "save"), rot("m2")],
        off={"rot_manifest": "garbage", "rot_spare": False},
        breaks="S1",
    ),
    Case(
        "rot",
        "an unreadable fence is a fence",
        lambda v: [old(v, "save"), new(v, "B", "resume", "save"), rot("t2")],
        off={"rot_fence": "ignore"},
        breaks="I5",
    ),
    Case(
        "rot",
        "an unreadable settlement is not a missing one",
        lambda v: [old(v, "save"), new(v, "B", "save"), new(v, "C", "resume", "save"), rot("s2")],
        off={"rot_settle": "ignore"},
        breaks="I5b",
        switches=2,
        deep=3,
    ),
    Case(
        "rot",
        "a number taken by an unreadable manifest is skipped",
        lambda v: [old(v, "save"), new(v, "B", "save"), rot("m3")],
        off={"rot_taken": "conflict"},
        breaks="L1",
    ),
    Case(
        "rot",
        "wide: an old settlement is lost",
        lambda v: [old(v, "save"), new(v, "B", "save"), new(v, "C", "save", "save"), rot("s2"), new(v, "D", "save")],
        switches=1,
        deep=2,
    ),
    Case(
        "rot",
        "wide: the newest settlement is lost",
        lambda v: [old(v, "save"), new(v, "B", "save"), new(v, "C", "save"), rot("s3"), new(v, "D", "rollback")],
        switches=1,
        deep=2,
    ),
]
for names in (("m2",), ("m3",), ("m4",), ("m2", "m3"), ("m3", "s2"), ("t2", "s2")):
    ROT += [
        Case(
            "rot",
            f"wide, {' '.join(names)}: A, B, C",
            lambda v, n=names: [
                old(v, "save", "save"),
                new(v, "B", "resume", "save", "rollback"),
                new(v, "C", "resume", "save"),
                rot(*n),
            ],
            switches=1,
            deep=3,
        ),
        Case(
            "rot",
            f"wide, {' '.join(names)}: with a pin",
            lambda v, n=names: [old(v, "save"), new(v, "B", "resume", "save", "save"), rot(*n), pin(v)],
            both={"pins": "held"},
            switches=1,
            deep=3,
        ),
        Case(
            "rot",
            f"wide, {' '.join(names)}: keep 1, with a reader",
            lambda v, n=names: [
                old(v, "save"),
                new(v, "B", "resume", "save", "save"),
                rot(*n),
                read(v),
                new(v, "C", "resume", "save"),
            ],
            both={"keep_n": 1},
            switches=1,
            deep=2,
        ),
        Case(
            "rot",
            f"wide, {' '.join(names)}: an operator drops it",
            lambda v, n=names: [
                old(v, "save"),
                rot(*n),
                new(v, "D", "drop", "save"),
                new(v, "C", "resume", "save", "rollback"),
            ],
            switches=1,
            deep=3,
        ),
    ]


def aside(v) -> list[Process]:
    return [("A", reset.old(v), 0), ("X", reset.new(v, "X", 0, "new"), 0), ("N", reset.new(v, "N"), 0)]


def reset_case(name: str, who=aside, **kw) -> Case:
    return Case("reset", name, who, rules=reset.R, check=reset.check, **kw)


RESET = [
    reset_case("numbers go on", off={"next_number": "restart"}, breaks="Z1", switches=2, deep=4),
    reset_case("the reset makes the old run void", off={"boundary": "none"}, breaks="Z1", switches=2, deep=4),
    reset_case("a claimer goes on with a stopped reset", off={"leftovers": "sweep"}, breaks="Z2", switches=2, deep=4),
    reset_case("a reset is a claim", off={"fence": False}, breaks="Z1", switches=2, deep=4),
    reset_case(
        "blobs are listed again before they go aside", off={"blobs_again": False}, breaks="Z2", switches=2, deep=4
    ),
    reset_case(
        "the set-aside run's milepost.json comes last", off={"marker": "first"}, breaks="Z2", switches=2, deep=4
    ),
    reset_case(
        "refused: an intent file, and new milepost.json (a fenced reset goes on)",
        off={"design": "move"},
        breaks="Z2 the set-aside run is declared whole, and an acknowledged",
        switches=3,
        deep=4,
    ),
    reset_case(
        "refused: an intent file, and new milepost.json (a late finisher takes the new one away)",
        off={"design": "move"},
        breaks="Z3",
        switches=3,
        deep=4,
    ),
    reset_case(
        "refused: the same, without a second look at milepost.json",
        off={"design": "move", "reread": False, "own_fence": False},
        breaks="Z2",
        switches=2,
        deep=3,
    ),
    reset_case(
        "refused: the same, with milepost.json overwritten instead",
        off={"design": "move", "json": "replace"},
        breaks="Z2 an acknowledged generation of the old run is neither",
        switches=2,
        deep=3,
    ),
]
for moves in ("all", "copy"):
    RESET += [
        reset_case(f"wide, {moves}", both={"moves": moves}, switches=2, deep=3),
        reset_case(
            f"wide, {moves}: the reset trains on, a poller",
            lambda v: [
                ("A", reset.old(v, 2), 0),
                ("X", reset.new(v, "X", 1, "new"), 0),
                ("N", reset.new(v, "N"), 0),
                ("P", reset.reader(v), 0),
            ],
            both={"moves": moves},
            switches=1,
            deep=2,
        ),
        reset_case(
            f"wide, {moves}: two resets",
            lambda v: [
                ("A", reset.old(v), 0),
                ("X", reset.new(v, "X", 1, "new"), 0),
                ("Y", reset.new(v, "Y", 0, "new2"), 0),
                ("N", reset.new(v, "N"), 0),
            ],
            both={"moves": moves},
            switches=1,
            deep=2,
        ),
    ]


def mirror_check(v, st: State) -> set[str]:
    v.strict = True
    return mirror.check(v, st)


MIRROR = [
    Case(
        "original",
        f"V16 mirror: {name}",
        lambda v: [("A", mirror.old(v, "copy"), 0), ("C", mirror.new(v, "C", "P", "copy"), 0)],
        off=off,
        breaks=breaks,
        start=mirror.initial,
        switches=2,
        deep=None,
        rules=mirror.W,
        check=mirror_check,
    )
    for name, off, breaks in (("one settlement for both roots", {"union": False}, "X2"),)
]

CASES = ORIGINAL + MIRROR + BASE + ROT + RESET
