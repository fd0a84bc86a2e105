"""Reset: a run is set aside and a clean one starts in the same root. keep_n = 2, keep lists, two-step claims.

Two designs. "settle": the reset is a settlement {head 0, next, run} that makes everything older void; the files then go
aside at leisure, and whoever claims next goes on with it. "move": an intent file, then every name goes aside, terms and
milepost.json included, then a new milepost.json. Set aside, a name has a letter in front: z, y, x by run (ASIDE).
"""

from core import MAN, Ghost, M, State, lst, mid_of


class R:
    design = "settle"  # settle | move
    next_number = "on"  # on | restart : the new run goes on counting, or starts again at 1
    boundary = (
        "void"  # void | none : the reset settlement makes the old run void, or settles on its head as a claim does
    )
    fence = True  # the reset claims the root before it touches anything
    leftovers = (
        "aside"  # aside | sweep : what a claimer does with older names that a stopped reset has left in the root
    )
    moves = "name"  # name | all | dir | copy : one rename a name, all at once, a directory, copy + delete
    blobs_again = True  # blobs are listed again, after the generations, before they go aside
    marker = "last"  # last | first : when the set-aside run gets its milepost.json
    reread = True  # design move: a writer reads milepost.json again before it acknowledges
    own_fence = True  # design move: a writer that misses its own fence stops
    json = "move"  # design move: move | replace : milepost.json goes aside and is made anew, or is overwritten
    order = "Rtmb"  # design move: what goes aside first
    posix = False
    max_crashes = 0

    def __init__(self, **kw):
        for k, v in kw.items():
            assert hasattr(R, k), k
            setattr(self, k, v)

    def counts(self, files, mid):
        return True


def man(num, term, wid, parent, kept, retired, own, blobs, run):
    return mid_of(M(num, term, wid, parent, frozenset(kept), frozenset(retired), own, frozenset(blobs), None, rec=run))


G1 = man(1, 1, "A1", None, {1}, (), "b1.1", {"b1.1", "b1.0"}, "old")
G2 = man(2, 1, "A2", G1, {1, 2}, (), "b1.2", {"b1.2", "b1.1"}, "old")


class Ctx:
    pass


ASIDE = {"old": "z", "new": "y", "new2": "x"}


def settlements(tl):
    return sorted((int(n[1:]), v) for n, v in tl if n[0] == "s" and isinstance(v, tuple))


def void(i, tl):
    return any(u > MAN[i].term and MAN[i].num > v[1] for u, v in settlements(tl))


def head_of(mids, tl, run=None):
    nv = [i for i in mids if not void(i, tl) and (run is None or MAN[i].rec == run)]
    head = max(nv, key=lambda i: (MAN[i].num, MAN[i].term), default=None)
    return head, [i for i in nv if i == head or MAN[i].num in MAN[head].kept]


def resets_of(tl):
    """All resets in order: (first term of the run it set aside, its own term, that run, its head, its next)."""
    out, first = [], 0
    for u, v in settlements(tl):
        if len(v) > 4:
            out.append((first, u, v[4], v[5], v[2]))
            first = u
    return out


def bterm(name):
    return int(name[1:].split(".")[0])


# ---- design "settle" --------------------------------------------------------------------------------------------
def aside(V, names, to):
    if V.moves == "all":
        yield ("rename", tuple(names), to)
    for n in names if V.moves != "all" else ():
        if V.moves == "copy":
            v = yield ("get", n)
            if v is not None:
                yield ("create", to + n, v)
                yield ("del", n)
        else:
            yield ("rename", (n,), to)


def finish(V, tl, gl, bl, reset):
    """Set aside what one reset made void: blobs first, then manifests, then terms, then the marker."""
    first, u, run, head, nxt = reset
    to = ASIDE[run]
    if V.marker == "first":
        yield ("create", to + "R", run)
    if V.blobs_again:  # a generation listed after the blobs may name one that is not in that list
        bl = yield ("list", "b")
    yield from aside(V, [n for n, _ in bl if first <= bterm(n) < u], to)
    yield from aside(V, [n for n, i in gl if belongs(i, reset)], to)
    for n, v in tl:
        if int(n[1:]) < u or n == f"t{u}":
            yield ("create", to + n, v)
    yield ("create", f"{to}s{u}", ("S", head, nxt, run))
    if V.marker == "last":
        yield ("create", to + "R", run)


def belongs(i, reset):
    first, u, run, head, nxt = reset
    return first <= MAN[i].term < u and MAN[i].num <= head


def claim(V, who, reset=None):
    c = Ctx()
    c.who = who
    for _ in range(2):
        tl = yield ("list", "ts")
        c.term = 1 + max(int(n[1:]) for n, _ in tl)
        if not V.fence and reset:
            break
        if (yield ("create", f"t{c.term}", who)):
            break
    else:
        return None
    have = {n for n, _ in tl}
    unsettled = [n for n in have if n[0] == "t" and "s" + n[1:] not in have]
    for n in sorted(unsettled):
        if V.fence or not reset:
            yield ("create", "s" + n[1:], "dead")
    if unsettled:
        tl = yield ("list", "ts")
    tl = tuple(x for x in tl if int(x[0][1:]) <= c.term)
    c.run = settlements(tl)[-1][1][3]
    bl = yield ("list", "b")
    gl = yield ("list", "m")
    mids = [i for _, i in gl]
    head, live = head_of(mids, tl)
    hnum = MAN[head].num if head is not None else 0
    nxt = 1 + max([MAN[i].num for i in mids] + [v[2] - 1 for _, v in settlements(tl)])
    rec = ("S", hnum, nxt, c.run)
    if reset:
        after = 1 if V.next_number == "restart" else nxt
        rec = ("S", 0 if V.boundary == "void" else hnum, after, reset, c.run, hnum)
    if (V.fence or not reset) and not (yield ("create", f"s{c.term}", rec)):
        yield ("conflict", c.term)
        return None
    pending = resets_of(tl + ((f"s{c.term}", rec),))
    if pending and V.next_number == "restart":
        nxt = 1 + max([MAN[i].num for i in mids if MAN[i].term >= pending[-1][1]], default=0)
    if reset:
        c.run, head, live = reset, None, []
    for p in pending if V.leftovers == "aside" else ():
        stale = any(p[0] <= bterm(n) < p[1] for n, _ in bl) or any(belongs(i, p) for i in mids)
        if stale or (yield ("get", ASIDE[p[2]] + "R")) is None:
            yield from finish(V, tl, gl, bl, p)
    names = set().union(*[MAN[i].blobs for i in live], set())
    for n, i in gl if not reset else ():
        if i not in live and not (V.leftovers == "aside" and any(belongs(i, p) for p in pending)):
            yield ("del", n)
    moved = pending[-1][1] if pending and V.leftovers == "aside" else 0
    for n, _ in bl if not reset else ():
        if n not in names and moved <= bterm(n) < c.term:
            yield ("del", n)
    c.head, c.live, c.next = head, {MAN[i].num: i for i in live}, nxt
    if head is not None:
        yield ("adopt", head)
    return c


# ---- design "move" ----------------------------------------------------------------------------------------------
def finish_moves(V, intent):
    """Set everything aside, make the new milepost.json, remove the intent."""
    new, first_term, first_number = intent[1:]
    for d in V.order:
        if d == "R" and V.json == "replace":
            yield ("put", "R", (new, first_term, first_number))
        elif d == "R":
            old = yield ("get", "R")
            if old is not None and old[0] != new:
                yield ("rename", ("R",), "z")
        elif V.moves == "dir":
            yield ("rename_dir", "ts" if d == "t" else d)
        else:
            found = yield ("list", "ts" if d == "t" else d)
            old = [n for n, v in found if (MAN[v].num < first_number if d == "m" else bterm(n) < first_term)]
            yield ("rename", tuple(old), "z")
    if V.json == "move":
        yield ("create", "R", (new, first_term, first_number))
    yield ("del", "I")


def claim_moves(V, who, reset=None):
    c = Ctx()
    c.who = who
    for _ in range(3):
        intent = yield ("get", "I")
        if intent is not None:
            yield from finish_moves(V, intent)
        json = yield ("get", "R")
        if json is None:
            continue
        c.run, first_term, first_number = json
        tl = yield ("list", "ts")
        c.term = max([first_term - 1] + [int(n[1:]) for n, _ in tl]) + 1
        if (yield ("create", f"t{c.term}", c.run)):
            break
    else:
        return None
    have = {n for n, _ in tl}
    unsettled = [n for n in have if n[0] == "t" and "s" + n[1:] not in have]
    for n in sorted(unsettled):
        yield ("create", "s" + n[1:], "dead")
    if unsettled:
        tl = yield ("list", "ts")
    bl = yield ("list", "b")
    gl = yield ("list", "m")
    mids = [i for _, i in gl]
    tl = tuple((n, v) for n, v in tl if not isinstance(v, tuple) or v[3] == c.run)
    head, live = head_of(mids, tl, c.run)
    hnum = MAN[head].num if head is not None else 0
    nxt = max([first_number] + [MAN[i].num + 1 for i in mids] + [v[2] for _, v in settlements(tl)])
    if not (yield ("create", f"s{c.term}", ("S", hnum, nxt, c.run))):
        yield ("conflict", c.term)
        return None
    if V.reread and (yield ("get", "R")) != json:
        yield ("conflict", c.term)
        return None
    c.head, c.live, c.next = head, {MAN[i].num: i for i in live}, nxt
    if reset:
        intent = (c.run, reset, c.term + 1, 1 if V.next_number == "restart" else nxt)
        if not (yield ("create", "I", intent)):
            return None
        yield from finish_moves(V, intent)
        return None  # whoever trains claims anew
    if head is not None:
        yield ("adopt", head)
    names = set().union(*[MAN[i].blobs for i in live], set())
    for n, i in gl:
        if i not in live and MAN[i].rec == c.run:
            yield ("del", n)
    for n, _ in bl:
        if n not in names and bterm(n) < c.term:
            yield ("del", n)
    return c


# ---- writers and readers ----------------------------------------------------------------------------------------
def save(V, c, tag):
    num = c.next
    own = f"b{c.term}.{num}{tag}"
    yield ("put", own, 1)
    blobs = {own} | ({MAN[c.head].own} if c.head is not None else set())
    while True:
        kept = set(sorted([*c.live, num])[-2:])
        drops = [n for n in c.live if n not in kept]
        mid = man(num, c.term, c.who + tag, c.head, kept, drops, own, blobs, c.run)
        if (yield ("create", f"m{num}", mid)):
            break
        got = yield ("get", f"m{num}")
        if got is None:
            continue
        if MAN[got].term > c.term:
            yield ("conflict", c.term)
            return False
        num += 1
    terms = [int(n[1:]) for n, _ in (yield ("list", "t"))]
    lost = V.design == "move" and V.own_fence and c.term not in terms
    if lost or max(terms, default=0) > c.term:
        yield ("conflict", c.term)
        return False
    if V.design == "move" and V.reread:
        json = yield ("get", "R")
        if json is None or json[0] != c.run:
            yield ("conflict", c.term)
            return False
    yield ("ack", mid)
    gone = [c.live[n] for n in drops]
    c.live = {n: i for n, i in c.live.items() if n in kept} | {num: mid}
    c.head, c.next = mid, num + 1
    for i in gone:
        yield ("del", f"m{MAN[i].num}")
    rest = set().union(*[MAN[i].blobs for i in c.live.values()])
    for b in sorted(set().union(*[MAN[i].blobs for i in gone], set()) - rest):
        yield ("del", b)
    return True


def old(V, saves=1):
    def run():
        c = Ctx()
        c.who, c.term, c.head, c.live, c.next, c.run = "A", 1, G2, {1: G1, 2: G2}, 3, "old"
        for n in range(saves):
            if not (yield from save(V, c, f"a{n}")):
                return

    return run


def new(V, who, saves=1, reset=None):
    def run():
        c = yield from (claim if V.design == "settle" else claim_moves)(V, who, reset)
        if c is None:
            return
        for n in range(saves):
            if not (yield from save(V, c, f"{who.lower()}{n}")):
                return

    return run


def reader(V, times=2):
    """A poller. It may be told the old run, then the new one; never the other way round."""

    def run():
        seen = None
        for _ in range(times):
            gl = yield ("list", "m")
            tl = yield ("list", "ts")
            json = (yield ("get", "R")) if V.design == "move" else None
            if V.design == "move" and json is None:
                continue
            head, _ = head_of([i for _, i in gl], tl, json[0] if json else None)
            if head is None:
                continue
            whole = True
            for b in sorted(MAN[head].blobs):
                whole = whole and (yield ("get", b)) is not None
            if not whole:
                continue
            if seen == "new" and MAN[head].rec == "old":
                yield ("bad", "Z4 a reader was given the new run, then the old one")
            seen = MAN[head].rec

    return run


# ---- invariants -------------------------------------------------------------------------------------------------
def run_terms(files, run):
    """The settlements that count for one run, wherever they lie: of a reset, the old run sees its own head."""
    out = {}
    for n, v in lst(files, (ASIDE.get(run, "?") + "s",)) + lst(files, "s"):
        if isinstance(v, tuple):
            if len(v) > 4 and v[4] == run:
                out[n[n.index("s") :]] = ("S", v[5], v[2], run)
            elif v[3] == run:
                out[n[n.index("s") :]] = v
    return tuple(out.items())


def check(V, st):
    g, out = st.ghost, set(st.ghost.bad)
    f = dict(st.files)
    here = lst(st.files, "ts")
    dropped = {}
    for i in g.created:
        if not void(i, run_terms(st.files, MAN[i].rec)):
            dropped.setdefault(MAN[i].rec, set()).update(MAN[i].retired)
    now = settlements(here)[-1][1][3] if V.design == "settle" else "new" if "zR" in f or f["R"][0] == "new" else "old"
    for i in g.acked:
        m = MAN[i]
        if m.num in dropped.get(m.rec, ()):
            continue
        to = ASIDE.get(m.rec, "?")
        whole = to + "R" in f and "I" not in f
        if m.rec == now:
            if f.get(f"m{m.num}") != i or any(b not in f for b in m.blobs):
                out.add("Z1 an acknowledged generation of the present run is not in the root, whole")
            elif void(i, here):
                out.add("Z1 an acknowledged generation of the present run is void")
        elif i not in (f.get(f"m{m.num}"), f.get(f"{to}m{m.num}")) or any(
            b not in f and to + b not in f for b in m.blobs
        ):
            out.add("Z2 an acknowledged generation of the old run is neither in the root nor set aside, whole")
        elif void(i, run_terms(st.files, m.rec)):
            out.add("Z2 an acknowledged generation of the old run is void in the set-aside run")
        elif whole and (f.get(f"{to}m{m.num}") != i or any(to + b not in f for b in m.blobs)):
            out.add("Z2 the set-aside run is declared whole, and an acknowledged generation does not load there")
    for to in ASIDE.values():
        mids = [i for _, i in lst(st.files, (to + "m",))]
        if to + "R" in f and "I" not in f and mids:
            head, live = head_of(mids, tuple((n[1:], v) for n, v in lst(st.files, (to + "t", to + "s"))))
            if head is None or any(to + b not in f for i in live for b in MAN[i].blobs):
                out.add("Z2 the set-aside run is declared whole, and does not load by its own words")
    used = {}
    for i in g.created if V.design == "settle" else ():
        if used.setdefault(MAN[i].num, i) != i and not (void(i, here) or void(used[MAN[i].num], here)):
            out.add("Z5 a number was used twice")
    started = [i for i in g.acked if MAN[i].rec == now != "old"]
    head, live = head_of(
        [i for _, i in lst(st.files, "m")], here, f["R"][0] if V.design == "move" and "R" in f else None
    )
    if started and V.design == "settle":
        if head is None or MAN[head].rec != now:
            out.add("Z3 a claimer would not go on with the new run")
        elif any(b not in f for i in live for b in MAN[i].blobs):
            out.add("I4 a generation that the root keeps by its own words lacks blobs")
    if started and V.design == "move" and ("R" not in f or f["R"][0] == "old"):
        out.add("Z3 a claimer would not go on with the new run")
    return out


def initial(V):
    first = ("old", 1, 1) if V.design == "move" else "old"
    files = {("t1", "A"), ("s1", ("S", 0, 1, "old")), ("m1", G1), ("m2", G2), ("R", first)} | {
        (f"b1.{i}", 1) for i in range(3)
    }
    ghost = Ghost(frozenset({G1, G2}), frozenset({G1, G2}), frozenset(), frozenset(), frozenset(), frozenset())
    return State(frozenset(files), frozenset(), ghost, (), (0, 0), frozenset(), 0, -1, 0)
