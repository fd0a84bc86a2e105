"""The protocol of DESIGN 4 as generators of store operations, with a switch for each rule that is doubted."""
from functools import lru_cache
from core import M, MAN, ROT, mid_of, lst, Ghost, State


class V:
    """Rule switches. The defaults are the repaired protocol; TEXT() gives the text as written, read plainly."""
    claim = "two_step"        # list_first | two_step | noseal
    boundary = "head"         # head | maxseen | alive : a lower term's manifest is void above ...
    nextnum = "recorded"      # recorded | seen : never reuse a number
    drop = "keep"             # keep | retired : manifest names what it keeps / what it retires
    sweep_terms = "lower"     # lower | any
    sweep_order = "blobs_first"   # blobs_first | gens_first
    sweep_when = "after"      # after | before (the fence)
    sweep_void = True         # the claimer also deletes void and dropped manifests
    occupied = "skip"         # skip | conflict : number taken by a void manifest of a lower term
    read_order = "gens_terms"  # gens_terms | terms_gens
    pins = "none"             # none | decision | recheck | held
    names = "unique"          # unique | content
    failed_number = "same"    # same | skip : number of the save after one with an unknown outcome
    cleanup = False           # a failed save removes its own blobs
    on_lost = "retry"         # retry | fail
    pressure = None           # None | before | trim
    claim_fsync = True        # claimer syncs generations/ and blobs/ before it lists
    term_fsync = True
    retire_fsync = True       # generations/ synced between removing manifests and removing blobs
    read_fsync = False        # a reader syncs generations/ before it hands a generation on
    own_drop = True
    pin_names = True          # blobs of a pinned manifest count as named even where nothing keeps it
    poll = "list"             # list | probe
    posix = False
    max_crashes = 0
    keep_n = 2
    target = "oldest"
    rb_check = True           # rollback target checked against the newest own manifest at publish time
    # rule 27: a base that is not the head
    base_from = "live"        # live | nonvoid : what may be resumed from
    base_names = "base"       # base | head : whose blobs the next generation reuses
    base_keep = "protect"     # protect | plain : the first generation after a change of base keeps what the old head kept
    trim = "base"             # base | head : what a trim publishes again while the base is not the head
    late_base = "unloaded"    # unloaded | always : an own attempt that turns out published becomes the base, if nothing was loaded since
    fallback = "line"         # line | newest : from a damaged head, to an ancestor of it, or to any older live one
    # rule 3a: records that can no longer be read
    rot_manifest = "number"   # number | garbage : keeps its number and is left alone, or is swept as rubbish
    rot_spare = True          # nothing with a number up to an unreadable manifest's is swept or retired
    rot_unsure = "recorded"   # recorded (in the settlement) | seen | False : nothing up to an unreadable manifest above the head is reused, rolled back to by name, or pinned
    rot_settle = "repeat"     # repeat | ignore : an unreadable settlement is read from a manifest of its term
    rot_fence = "name"        # name | ignore : an unreadable fence counts by its name
    rot_taken = "next"        # next | conflict : a number taken by an unreadable manifest
    last_resort = False       # ask F2: only where the scenario damages one head at a time, between claims

    def __init__(self, **kw):
        for k, v in kw.items():
            assert hasattr(V, k), k
            setattr(self, k, v)

    def counts(self, files, mid):
        """Is this manifest alive at the moment it appears? (A late or stray one that no head keeps never counts.)"""
        if self.drop != "keep" or self.posix:
            return True
        _, bounds = terms_of(lst(files, "ts"))
        return mid in view("keep", mids_of(lst(files, "m")), bounds, frozenset())[1]

    def head_blob(self, files, least):
        """The blob that damage hits next: the head's own, if the head is number `least` or newer."""
        _, bounds = terms_of(lst(files, "ts"))
        head, _ = view("keep", mids_of(lst(files, "m")), bounds, frozenset())
        return MAN[head].own if head is not None and MAN[head].num >= least else None


def TEXT(**kw):
    d = dict(claim="list_first", boundary="maxseen", nextnum="seen", drop="retired", sweep_terms="any", sweep_order="gens_first",
             occupied="conflict", read_order="terms_gens", names="content", claim_fsync=False, term_fsync=False)
    d.update(kw)
    return V(**d)


# ---- evaluating what lies on disk -------------------------------------------------------------------------------
def terms_of(tl):
    """(fences, boundaries): boundary b of term u makes void each manifest of a lower term with number >= b."""
    fences = tuple(sorted(int(n[1:]) for n, _ in tl if n[0] == "t"))
    bounds = tuple(sorted((int(n[1:]), v[1], v[2]) for n, v in tl if isinstance(v, tuple)))
    return fences, bounds


def is_void(m, bounds):
    return any(u > m.term and (m.num not in b if isinstance(b, frozenset) else m.num >= b) for u, b, _ in bounds)


def mids_of(gl):
    return tuple(i for _, i in gl if i != ROT)


def rotten_of(gl):
    return [int(n[1:]) for n, i in gl if i == ROT]


def settled_of(V, tl, mids):
    """(fences, boundaries) where settlements may be unreadable; boundaries are None where one that matters is lost."""
    fences, bounds = terms_of(tl)
    if V.rot_fence == "ignore":
        fences = tuple(u for u in fences if (f"t{u}", ROT) not in tl)
    if V.rot_settle == "repeat":
        for n, v in tl:
            u = int(n[1:])
            if n[0] == "s" and v == ROT:
                recs = {MAN[i].rec for i in mids if MAN[i].term == u}
                if recs:
                    bounds += ((u, *recs.pop()[:2]),)
                elif not any(x[0] > u for x in bounds):
                    return fences, None
    return fences, tuple(sorted(bounds))


def unsure_of(V, tl, mids):
    """The number up to which blobs may be vanishing, as settlements (or manifests, for unreadable ones) have recorded it."""
    if V.rot_unsure != "recorded":
        return 0
    seen = [v[3] for n, v in tl if n[0] == "s" and isinstance(v, tuple) and len(v) > 3]
    lost = {int(n[1:]) for n, v in tl if n[0] == "s" and v == ROT}
    return max(seen + [MAN[i].rec[2] for i in mids if MAN[i].term in lost], default=0)


def ancestors(i):
    """Everything this manifest was really built from, by its parent and rollback_to."""
    out = set()
    while i is not None:
        out.add(i)
        m, i = MAN[i], MAN[i].parent
        if m.target is not None:
            while i is not None and MAN[i].num != m.target:
                i = MAN[i].parent
    return out


def number(i, n):
    """The generation with this number on the chain that ends in i."""
    while MAN[i].num != n:
        i = MAN[i].parent
    return i


@lru_cache(maxsize=None)
def view(v_drop, mids, bounds, held):
    """(head id or None, frozenset of live ids): what anyone who lists the store may count on."""
    nv = [i for i in mids if not is_void(MAN[i], bounds)]
    if not nv:
        return None, frozenset()
    head = max(nv, key=lambda i: (MAN[i].num, MAN[i].term))
    if v_drop == "keep":
        live = {i for i in nv if i == head or MAN[i].num in MAN[head].kept or MAN[i].num in held}
    else:
        dead = set().union(*[MAN[i].retired for i in nv])
        live = {i for i in nv if MAN[i].num not in dead or MAN[i].num in held}
    return head, frozenset(live)


def pins_of(V, pl):
    want = frozenset(int(n[1:]) for n, _ in pl)
    held = frozenset(int(n[1:]) for n, v in pl if v == "held")
    if V.pins == "held":
        return want, held
    if V.pins == "recheck":
        return want, want        # any pin counts as alive
    return want, frozenset()


def bterm(name):
    return int(name[1:].split(".")[0])


def bnum(name):
    return int(name.split(".")[1])


class Ctx:
    pass


def fsync(V, d):
    if V.posix:
        yield ("fsync", d)


# ---- claim ------------------------------------------------------------------------------------------------------
def sweep(V, c, live, gl, bl, pl):
    want, _ = pins_of(V, pl)
    names = set()
    for i in live:
        names |= MAN[i].blobs
    dead = []
    for n, i in gl:
        if i == ROT:
            if V.rot_manifest == "garbage":
                dead.append(n)
            continue
        if i in live or MAN[i].num <= c.spare:
            continue
        if MAN[i].num in want:
            names |= MAN[i].blobs
        elif V.sweep_void:
            dead.append(n)
        else:
            names |= MAN[i].blobs        # "no manifest names": any manifest counts
    for n in dead:
        yield ("del", n)
    if dead:
        yield from fsync(V, "m")
    for n, _ in bl:
        if n not in names and (V.sweep_terms == "any" or bterm(n) < c.term) and not (c.spare and bnum(n) <= c.spare):
            yield ("del", n)


def pinlist(V):
    if V.pins == "none":
        return ()
    return (yield ("list", "p"))


def claim(V, who):
    c = Ctx()
    c.damaged, c.loaded = frozenset(), False
    c.who, c.skipped, c.spare, c.unsure, c.rec = who, [], 0, 0, None
    for attempt in range(2):
        tl = yield ("list", "ts")
        fences, bounds = terms_of(tl)
        if V.rot_fence == "ignore":
            fences = settled_of(V, tl, ())[0]
        c.term = max(fences) + 1
        if V.claim == "list_first":
            gl = yield ("list", "m")
            if V.sweep_when == "before":
                bl = yield ("list", "b")
                head, live = view(V.drop, tuple(i for _, i in gl), bounds, frozenset())
                c0 = Ctx()
                c0.term, c0.spare = c.term, 0
                yield from sweep(V, c0, live, gl, bl, ())
            first = max([MAN[i].num for _, i in gl if not is_void(MAN[i], bounds)], default=0) + 1
        ok = yield ("create", f"t{c.term}", ("S", first, first) if V.claim == "list_first" else who)
        if V.term_fsync is True:
            yield from fsync(V, "ts")
        if ok:
            break
    else:
        return None                  # lost the race for a term twice: the caller tries later
    if V.claim == "two_step":
        settled = {int(n[1:]) for n, _ in tl if n[0] == "s"}
        un = [u for u in fences if u not in settled]
        for u in un:
            yield ("create", f"s{u}", "dead")
        if un:
            yield from fsync(V, "ts")
            tl = yield ("list", "ts")
            fences, bounds = terms_of(tl)
    if V.claim == "list_first":
        bounds = bounds + ((c.term, first, first),)
        pl = yield from pinlist(V)
        _, held = pins_of(V, pl)
        gl = yield ("list", "m")
        bl = yield ("list", "b")
        mids = tuple(i for _, i in gl)
        head, live = view(V.drop, mids, bounds, held)
    else:
        if V.claim_fsync == "before":
            yield from fsync(V, "mb")
        if V.sweep_order == "blobs_first":
            bl = yield ("list", "b")
        gl = yield ("list", "m")
        if V.claim_fsync is True:
            yield from fsync(V, "mb")       # what is relied on is made durable first, after it was seen
        pl = yield from pinlist(V)
        _, held = pins_of(V, pl)
        mids = mids_of(gl)
        bounds = settled_of(V, tl, mids)[1]
        if bounds is None:
            return None                 # an unreadable settlement that nothing repeats: CorruptError, touch nothing
        head, live = view(V.drop, mids, bounds, held)
        rotten = rotten_of(gl) if V.rot_manifest == "number" else []
        if head is None:
            return None                 # there is data and none of it can be read: CorruptError, settle nothing
        top = max([MAN[i].num for i in mids] + rotten + [n - 1 for _, _, n in bounds]) if V.nextnum == "recorded" else max(MAN[i].num for i in mids)
        c.rotten = rotten
        c.spare = max(rotten, default=0) if V.rot_spare else 0
        c.unsure = max([unsure_of(V, tl, mids)] + [n for n in rotten if n > MAN[head].num]) if V.rot_unsure else 0
        b = MAN[head].num + 1 if V.boundary == "head" else top + 1
        if V.boundary == "alive":
            want, _ = pins_of(V, pl)
            b = frozenset(MAN[i].num for i in live) | frozenset(MAN[i].num for i in mids if MAN[i].num in want and not is_void(MAN[i], bounds))
        c.rec = (b, top + 1, c.unsure)
        ok = yield ("create", f"s{c.term}", ("S", b, top + 1) + ((c.unsure,) if c.unsure else ()))
        if not ok:
            yield ("conflict", c.term)
            return None
        if V.term_fsync:
            yield from fsync(V, "ts")
        bounds = bounds + ((c.term, b, top + 1),)
        if V.sweep_order == "gens_first":
            bl = yield ("list", "b")
    c.head = head
    c.live = {MAN[i].num: i for i in live}
    if V.pin_names:
        c.skipped = [i for n, i in gl if i != ROT and i not in live and MAN[i].num in pins_of(V, pl)[0]]
    c.next = max([MAN[i].num for i in mids] + ([n - 1 for _, _, n in bounds] if V.nextnum == "recorded" else [])) + 1
    if V.claim == "list_first":
        c.next = max(c.next, 0) if V.occupied == "skip" else MAN[head].num + 1
    c.base, c.seen = head, [i for i in mids if not is_void(MAN[i], bounds)]
    yield ("adopt", head)
    if V.sweep_when == "after":
        yield from sweep(V, c, live, gl, bl, pl)
    yield ("put", "L", MAN[head].num)
    return c


# ---- publish and retire -----------------------------------------------------------------------------------------
def save(V, c, tag, kind="save", target=None, content=None):
    """One save. Returns "ok", "conflict", "failed"."""
    want = frozenset()
    if V.pins != "none":
        want, held = pins_of(V, (yield ("list", "p")))
    if V.pressure == "before" and kind == "save":        # DESIGN: under pressure the oldest go before writing
        old = min(c.live)
        if old != MAN[c.head].num and len(c.live) > 1:
            i = c.live.pop(old)
            yield ("del", f"m{old}")
            yield from fsync(V, "m")
            rest = set().union(*[MAN[j].blobs for j in c.live.values()])
            for b in sorted(MAN[i].blobs - rest):
                yield ("del", b)
    base = c.base
    if kind == "rollback":
        if target is None:
            target = min(c.live) if V.target == "oldest" else sorted(c.live)[-2]
        if target not in c.live:
            return "refused"
        base = c.live[target]
    elif kind == "trim" and V.trim == "head":
        base = c.head
    if kind == "trim" and (base is None or MAN[base].num <= c.unsure):
        return "refused"              # no blobs that could be published again
    again = kind in ("rollback", "trim") and MAN[base].num > c.unsure
    if again:
        own = MAN[base].own
    else:                             # new bytes, or old ones whose blobs a paused writer may be deleting
        if kind == "rollback" and not (yield from loads(V, base)):
            return "refused"
        own = f"b{c.term}.{c.next}.{tag}" if V.names == "unique" else f"b{c.term}.{content or tag}"
        yield ("put", own, 1)
        yield from fsync(V, "b")
    num = c.next
    while True:
        live = dict(c.live)
        n_keep = 1 if kind == "trim" else V.keep_n
        nums = sorted(list(live) + [num])
        kept = set(nums[-n_keep:]) | (set(nums) & want)
        target = None if base == c.head else MAN[base].num if base is not None else 0
        if target is not None and kind != "trim" and V.base_keep == "protect":
            kept = set(nums)
        dropped = [n for n in live if n not in kept]
        source = base if V.base_names == "base" else c.head
        if again:
            blobs = MAN[base].blobs
        elif kind == "rollback" or source is None or MAN[source].num <= c.unsure:
            blobs = frozenset({own})
        else:
            blobs = frozenset({own, MAN[source].own})
        if blobs & c.damaged:
            yield ("bad", "F3 a generation names a blob that its writer knows to be damaged")
        line = (MAN[base].line | {MAN[base].num, num} if base is not None else {num}) & kept
        m = M(num, c.term, f"{c.who}{tag}{'trim' if kind == 'trim' else ''}", c.head, frozenset(kept), frozenset(dropped), own, blobs, target, frozenset(line), c.rec)
        mid = mid_of(m)
        r = yield ("create", f"m{num}", mid)
        tries = 0
        while r == "lost":
            got = yield ("get", f"m{num}")
            if got == mid:
                r = True
            elif got is None and V.on_lost == "retry" and tries < 1:
                tries += 1
                r = yield ("create", f"m{num}", mid)
            elif got is None:
                if V.cleanup and kind == "save":
                    yield ("del", own)
                if V.failed_number == "skip":
                    c.next = num + 1
                return "failed"
            else:
                r = False
        if r is True:
            break
        got = yield ("get", f"m{num}")
        if got == mid:                       # a late or retried create of our own
            break
        if got is None:
            continue
        if got == ROT and V.rot_taken == "next":
            num += 1
            continue
        if got == ROT:
            yield ("conflict", c.term)
            return "conflict"
        o = MAN[got]
        if o.term == c.term:
            # our own earlier attempt, whose outcome was unknown: it is published, and it is the parent now
            if V.own_drop:                   # what it dropped is still to be retired, and may be pinned
                c.skipped += [i for n, i in c.live.items() if n not in o.kept]
            c.head = got
            c.live = {n: i for n, i in c.live.items() if n in o.kept} | {o.num: got}
            num = c.next = o.num + 1
            if kind == "save" and (V.late_base == "always" or not c.loaded):
                if c.loaded:
                    yield ("bad", "F4 a generation gives as its base what its state was not built from")
                base = c.base = got
            continue
        if V.occupied == "skip" and o.term < c.term:
            num += 1
            continue
        yield ("conflict", c.term)
        return "conflict"
    yield from fsync(V, "m")
    tl = yield ("list", "ts")
    if max(settled_of(V, tl, ())[0]) > c.term:
        yield ("conflict", c.term)
        return "conflict"
    yield ("put", "L", num)
    yield ("ack", mid)
    c.head, c.base, c.next, c.loaded = mid, mid, num + 1, False
    gone = [c.live[n] for n in dropped] + c.skipped
    c.live = {n: i for n, i in c.live.items() if n in kept} | {num: mid}
    c.skipped = []
    if V.pins in ("recheck", "held"):
        want, held = pins_of(V, (yield ("list", "p")))
        c.skipped = [i for i in gone if MAN[i].num in want]
        gone = [i for i in gone if MAN[i].num not in want]
    gone = [i for i in gone if MAN[i].num > c.spare]
    for i in gone:
        yield ("del", f"m{MAN[i].num}")
    if gone and V.retire_fsync:
        yield from fsync(V, "m")
    rest = set().union(*[MAN[i].blobs for i in list(c.live.values()) + c.skipped])
    for b in sorted(set().union(*[MAN[i].blobs for i in gone], set()) - rest):
        if not (c.spare and bnum(b) <= c.spare):
            yield ("del", b)
    return "ok"


# ---- what is resumed from ---------------------------------------------------------------------------------------
def loads(V, i):
    """Do all blobs of this generation read back? Returns the bad ones' absence as a truth value."""
    for b in sorted(MAN[i].blobs):
        if (yield ("get", b)) != 1:
            return False
    return True


def choose(V, c, how):
    """Set the base: "resume" takes the head or falls back; "never" starts anew; "oldest" is a number the user named."""
    c.loaded = True
    if how == "never":
        c.base = None
        return True
    if how == "oldest":
        order = [min(c.live.values(), key=lambda i: MAN[i].num)]
    elif V.base_from == "nonvoid":
        order = sorted(c.seen, key=lambda i: -MAN[i].num)
    else:
        line = MAN[c.head].line if V.fallback == "line" else set(c.live)
        order = [c.head] + [c.live[n] for n in sorted(line & set(c.live), reverse=True) if n != MAN[c.head].num]
    for i in order:
        if (yield from loads(V, i)):
            c.base = i
            c.damaged = frozenset(MAN[j].own for j in order[:order.index(i)]) - MAN[i].blobs
            if how == "resume" and i not in ancestors(c.head):
                yield ("bad", "F1 a fallback went to a generation that the head does not descend from")
            return True
    if how == "resume" and V.last_resort:
        yield ("bad", "F2 one damaged head at a time, and nothing is left to resume from")
    return False


def start_writer(V):
    """The writer of term 1, which has published 1 and 2."""
    c = Ctx()
    c.who, c.skipped, c.term, c.head, c.live, c.next = "A", [], 1, G2, {1: G1, 2: G2}, 3
    c.base, c.damaged, c.spare, c.unsure, c.rec, c.seen, c.loaded = G2, frozenset(), 0, 0, (1, 1, 0), [G1, G2], False
    return c


G1 = mid_of(M(1, 1, "A1", None, frozenset({1}), frozenset(), "b1.1", frozenset({"b1.1", "b1.0"}), None, frozenset({1}), (1, 1, 0)))
G2 = mid_of(M(2, 1, "A2", G1, frozenset({1, 2}), frozenset(), "b1.2", frozenset({"b1.2", "b1.1"}), None, frozenset({1, 2}), (1, 1, 0)))


def initial(lost=0, delayed=0):
    files = frozenset({("t1", "A"), ("s1", ("S", 1, 1)), ("m1", G1), ("m2", G2), ("b1.0", 1), ("b1.1", 1), ("b1.2", 1), ("L", 2)})
    return State(files, frozenset(), Ghost(frozenset({G1, G2}), frozenset({G1, G2}), frozenset(), frozenset(), frozenset(), frozenset()),
                 (), (lost, delayed), frozenset(), 0, -1, 0)


def old_writer(V, *plan):
    def run():
        c = start_writer(V)
        for n, step in enumerate(plan, 3):
            kind, _, content = step.partition("=")
            if step in ("resume", "never", "oldest"):
                if not (yield from choose(V, c, step)):
                    return
                continue
            r = yield from save(V, c, str(n), kind, content=content or None)
            if r == "conflict":
                return
    return run


def new_writer(V, who, *plan):
    def run():
        c = yield from claim(V, who)
        if c is None:
            return
        for n, step in enumerate(plan):
            if step in ("resume", "never", "oldest"):
                if not (yield from choose(V, c, step)):
                    return
                continue
            if step == "drop":           # an operator gives up what this claim found unreadable
                for rotten in c.rotten:
                    yield ("drop", f"m{rotten}")
                continue
            r = yield from save(V, c, who + str(n), step)
            if r == "conflict":
                return
    return run


# ---- readers and pins -------------------------------------------------------------------------------------------
def reader(V, tries=2):
    def run():
        need = yield ("rstart",)
        seen = None
        for _ in range(tries):
            if V.read_order == "gens_terms":
                gl = yield ("list", "m")
                tl = yield ("list", "ts")
            else:
                tl = yield ("list", "ts")
                gl = yield ("list", "m")
            fences, bounds = settled_of(V, tl, mids_of(gl))
            if bounds is None:
                return
            head, live = view(V.drop, mids_of(gl), bounds, frozenset())
            if head is None:
                continue
            if head == seen:
                yield ("bad", "R3 the same head was listed again though a blob of it is gone")
                return
            seen = head
            m = MAN[head]
            if V.read_fsync:
                yield from fsync(V, "m")
            settled = not any(u > m.term and not any(x[0] == u for x in bounds) and f"s{u}" not in dict(tl) for u in fences) \
                if V.claim != "list_first" else True
            line = m.line if V.fallback == "line" else {MAN[i].num for i in live}
            order = [head] + sorted((i for i in live if MAN[i].num in line and i != head), key=lambda i: -MAN[i].num)
            for i in order:
                damaged, gone = False, False
                for b in sorted(MAN[i].blobs):
                    got = yield ("get", b)
                    damaged, gone = damaged or got == ROT, got is None
                    if gone or damaged:
                        break
                if not damaged:
                    break
            if not gone and not damaged:
                if i not in ancestors(head):
                    yield ("bad", "F1 a fallback went to a generation that the head does not descend from")
                yield ("read", i, settled, need if i == head else 0)
                return
            if damaged:
                return
    return run


def pinner(V, num=1):
    def run():
        yield ("create", f"p{num}", "want")
        yield from fsync(V, "p")
        if V.pins == "decision":
            if (yield ("get", f"m{num}")) is None:
                yield ("del", f"p{num}")
                return
            yield ("pinned", num)
            return
        gl = yield ("list", "m")
        tl = yield ("list", "ts")
        _, bounds = settled_of(V, tl, mids_of(gl))
        head, live = view(V.drop, mids_of(gl), bounds, frozenset()) if bounds is not None else (None, ())
        above = [n for n in rotten_of(gl) if head is not None and n > MAN[head].num]
        unsure = max([unsure_of(V, tl, mids_of(gl))] + above) if V.rot_unsure else 0
        if num not in {MAN[i].num for i in live} or num <= unsure:
            yield ("del", f"p{num}")
            return
        if V.pins == "held":
            yield ("put", f"p{num}", "held")
            yield from fsync(V, "p")
        yield ("pinned", num)
    return run


def env(*events):
    """Things that happen to files: ("damage", least head number), ("rot", name), ("del", name) by an operator."""
    def run():
        for e in events:
            yield e
    return run


# ---- invariants -------------------------------------------------------------------------------------------------
def check(V, st):
    g, files = st.ghost, st.files
    out = set(g.bad)
    truth = dict(x for x in g.rotten if isinstance(x, tuple))
    fences, bounds = terms_of(tuple((n, truth.get(n, v)) for n, v in lst(files, "ts")))
    held = frozenset(int(n[1:]) for n, v in files if n[0] == "p" and (v == "held" or V.pins == "recheck")) if V.pins in ("held", "recheck") else frozenset()
    have = {n for n, _ in files}
    f = dict(files)
    nv = sorted((MAN[i].num, i) for i in g.created if not is_void(MAN[i], bounds))
    nvset = {i for _, i in nv}
    dropped = set()
    for i in nvset | {i for i in g.rotten if isinstance(i, int)}:
        dropped |= MAN[i].retired

    def loads(i):
        return f.get(f"m{MAN[i].num}") == i and MAN[i].blobs <= have

    # What an unreadable manifest had dropped is dead already; whoever cannot read that may take it up, or make it void.
    lost = {n for i in g.rotten | g.acked if isinstance(i, int) for n in MAN[i].retired} if g.rotten else set()
    excused = {i for i in g.created if MAN[i].num in lost} | g.rotten
    for i in g.acked - g.rotten:
        if i not in nvset and i in excused:
            continue
        if i not in nvset and not (V.boundary == "alive" and MAN[i].num in dropped):
            out.add("I5 an acknowledged save is void")
        elif MAN[i].num not in dropped and not loads(i):
            out.add("I1 an acknowledged generation that nothing retired does not load")
    for i in g.adopted - excused:
        if i not in nvset and not (V.boundary == "alive" and MAN[i].num in dropped):
            out.add("I5b a generation a claimer resumed from became void")
    for i in g.reads - excused:
        if i not in nvset and not (V.boundary == "alive" and MAN[i].num in dropped):
            out.add("R1 a reader was given a generation as settled that is void")
    for (n1, i1), (n2, i2) in zip(nv, nv[1:]):
        if n1 == n2:
            out.add("I2 two non-void manifests share a number")
        elif MAN[i2].parent != i1 and i1 not in g.rotten and not (V.boundary == "alive" and MAN[MAN[i2].parent].num > n1):
            out.add("I2 the non-void generations are not one chain")
    owner = {}
    for i in nvset:
        if owner.setdefault(MAN[i].term, MAN[i].wid[0]) != MAN[i].wid[0]:
            out.add("T1 two writers published under one term")
    head, live = view(V.drop, mids_of(lst(files, "m")), bounds, held)
    if head is None:
        if not g.rotten:
            out.add("I3 nothing left to claim")
    else:
        # Where an unreadable manifest lies above the head, what its keep dropped may be half deleted, and a late create may
        # stand there without blobs: all up to its number is unsure for good, is verified before use, and is not asked for here.
        unsure = max([n for n in rotten_of(lst(files, "m")) if n > MAN[head].num]
                     + [v[3] for n, v in files if n[0] == "s" and isinstance(v, tuple) and len(v) > 3]
                     + [x[1][3] for x in g.rotten if isinstance(x, tuple) and isinstance(x[1], tuple) and len(x[1]) > 3], default=0)
        last = max((MAN[i].num for i in g.acked - g.rotten if i in nvset and not (g.rotten and MAN[i].num in dropped)), default=0)
        if MAN[head].num < last:
            out.add("I3 a fresh claimer finds less than the last acknowledged")
        sure = {i for i in live if MAN[i].num > unsure}
        if head in sure and not MAN[head].blobs <= have:
            out.add("I4h the newest generation by the store's own words lacks blobs")
        if V.drop == "keep" and st.crashes == 0 and not sure <= g.created:
            out.add("I9 a manifest that was dead when it appeared is alive")
        if any(not MAN[i].blobs <= have for i in sure):
            out.add("I4 a generation that the store's own words keep lacks blobs")
        h = MAN[head]
        changed = h.target is not None and not h.wid.endswith("trim")
        if changed and not g.rotten and not V.last_resort:
            if any(not loads(number(h.parent, n)) for n in MAN[h.parent].kept):
                out.add("N1 the first generation after a change of base, and what the old head kept is not all there")
    for i in g.rotten & (nvset | g.acked):
        known = any(MAN[i].num in MAN[j].retired for j in g.created)     # dropped by a writer which had read it
        if not known and ("drop", i) not in g.rotten and not MAN[i].blobs <= have:
            out.add("S1 blobs of an unreadable generation were deleted by someone who could not know it")
    for n in g.pinned:
        i = f.get(f"m{n}")
        if i is None or not MAN[i].blobs <= have or (f"p{n}" not in have):
            out.add("P1 a generation whose pin succeeded does not load")
        if f"p{n}" in have and (i is None or not MAN[i].blobs <= have):
            out.add("P1 a generation whose pin succeeded does not load")
    return out


def terminal(V, st):
    """When everyone has finished: does a poller that starts at LATEST find the newest generation?"""
    f = dict(st.files)
    _, bounds = terms_of(lst(st.files, "ts"))
    head, _ = view(V.drop, mids_of(lst(st.files, "m")), bounds, frozenset())
    if V.poll == "list":
        return set()
    n, best = f["L"], None
    while f"m{n}" in f:
        if not is_void(MAN[f[f"m{n}"]], bounds):
            best = f[f"m{n}"]
        n += 1
    return set() if best == head else {"R4 a poller that probes on from LATEST stays at an old generation for ever"}
