"""Explicit-state explorer. A process is a deterministic generator of store operations; its local state is the list of
answers it got, kept as a node in a trie (so states hash cheaply and equal histories merge). BFS gives shortest traces.
A process that is never scheduled again is a crashed or paused one, so kills need no transition of their own."""
import time
from collections import deque, namedtuple

# A manifest; parent is a manifest id. line = the kept numbers it descends from; rec = its term's settlement, repeated.
M = namedtuple("M", "num term wid parent kept retired own blobs target line rec", defaults=(frozenset(), None))
ROT = "rot"                 # the content of a file that can no longer be read (a blob: fails its digest)
MAN, MID = [], {}


def mid_of(m):
    if m not in MID:
        MID[m] = len(MAN)
        MAN.append(m)
    return MID[m]


# rotten = manifest ids and (settlement, content) pairs that became unreadable
Ghost = namedtuple("Ghost", "created acked adopted pinned reads bad rotten", defaults=(frozenset(),))
State = namedtuple("State", "files pend ghost nodes budget flying crashes last sw")


class Prog:
    """Lazily unfolded trie of a generator's local states."""

    def __init__(self, make):
        self.make, self.ops, self.path, self.ch = make, [], [], {}
        self.root = self._new(())

    def _new(self, path):
        g = self.make()
        try:
            op = next(g)
            for r in path:
                op = g.send(r)
        except StopIteration:
            return -1
        self.ops.append(op)
        self.path.append(path)
        return len(self.ops) - 1

    def child(self, nid, resp):
        k = (nid, resp)
        if k not in self.ch:
            self.ch[k] = self._new(self.path[nid] + (resp,))
        return self.ch[k]


def fget(files, name):
    for n, v in files:
        if n == name:
            return v
    return None


INTERN = {}


def intern(x):
    return INTERN.setdefault(x, x)


LST = {}


def lst(files, prefixes):
    k = (files, prefixes)
    if k not in LST:
        LST[k] = _lst(files, prefixes)
    return LST[k]


def _lst(files, prefixes):
    if isinstance(prefixes, tuple):
        return tuple(sorted((n, v) for n, v in files if n[:2] in prefixes))
    return tuple(sorted((n, v) for n, v in files if n[0] in prefixes))


def setf(st, name, val, posix):
    """Set or delete a name; remember what is durable until its directory is synced."""
    old = fget(st.files, name)
    if old == val:
        return st.files, st.pend
    f = set(st.files)
    if old is not None:
        f.discard((name, old))
    if val is not None:
        f.add((name, val))
    p = st.pend
    if posix:
        cur = dict(p)
        if name not in cur:
            cur[name] = old
        p = frozenset(cur.items())
    return intern(frozenset(f)), intern(p)


def apply(st, op, V):
    """Yield (note, new state without node change, answer)."""
    k = op[0]
    g = st.ghost
    if k == "list":
        yield "", st, lst(st.files, op[1])
    elif k == "get":
        yield "", st, fget(st.files, op[1])
    elif k == "put":
        f, p = setf(st, op[1], op[2], V.posix)
        yield "", st._replace(files=f, pend=p), True
    elif k == "del":
        f, p = setf(st, op[1], None, V.posix)
        yield "", st._replace(files=f, pend=p), True
        if st.budget[1] > 0 and op[1][0] == "b":       # a delete whose request is delayed in the network
            yield "delayed", st._replace(flying=st.flying | {("del", op[1], 0)},
                                         budget=(st.budget[0], st.budget[1] - 1)), True
    elif k == "create":
        cur = fget(st.files, op[1])
        if cur is None:
            f, p = setf(st, op[1], op[2], V.posix)
            gg = g._replace(created=g.created | {op[2]}) if op[1][0] == "m" and V.counts(f, op[2]) else g
            ok = st._replace(files=f, pend=p, ghost=gg)
            yield "", ok, True
            if op[1][0] == "m" and st.budget[0] > 0:
                yield "applied, answer lost", ok._replace(budget=(st.budget[0] - 1, st.budget[1])), "lost"
        else:
            yield "", st, False
        if op[1][0] == "m" and st.budget[1] > 0:
            yield "request delayed, timeout", st._replace(flying=st.flying | {("create", op[1], op[2])},
                                                          budget=(st.budget[0], st.budget[1] - 1)), "lost"
    elif k == "rename":                # (.., names, where): each goes aside at once; what is gone or there already is left out
        f = st.files
        for name in op[1]:
            cur = fget(f, name)
            if cur is not None:
                f = (f - {(name, cur)}) | ({(op[2] + name, cur)} if fget(f, op[2] + name) is None else set())
        yield "", st._replace(files=intern(frozenset(f))), True
    elif k == "rename_dir":            # (.., prefix): fails where the target has something in it
        f = st.files
        if not any(n[0] == "z" and n[1] in op[1] for n, _ in f):
            f = frozenset(("z" + n if n[0] in op[1] else n, v) for n, v in f)
        yield "", st._replace(files=intern(f)), True
    elif k == "fsync":
        yield "", st._replace(pend=frozenset(x for x in st.pend if x[0][0] not in op[1])), True
    elif k == "ack":
        yield "", st._replace(ghost=g._replace(acked=g.acked | {op[1]})), True
    elif k == "adopt":
        yield "", st._replace(ghost=g._replace(adopted=g.adopted | {op[1]})), True
    elif k == "rstart":
        yield "", st, max((MAN[a].num for a in g.acked), default=0)
    elif k == "damage":                # (.., n): a blob of the head's own goes bad, if the head is n or newer
        name = V.head_blob(st.files, op[1])
        ok = name is not None and fget(st.files, name) == 1
        yield name or "", st._replace(files=setf(st, name, ROT, False)[0]) if ok else st, True
    elif k == "drop":                  # (.., name): an operator gives up a record that can't be read
        gone = frozenset(("drop", i) for i in g.rotten if isinstance(i, int) and f"m{MAN[i].num}" == op[1])
        if fget(st.files, op[1]) != ROT:
            yield "nothing there", st, True
        else:
            yield "", st._replace(files=setf(st, op[1], None, False)[0], ghost=g._replace(rotten=g.rotten | gone)), True
    elif k == "rot":                   # (.., name): a record becomes unreadable
        cur = fget(st.files, op[1])
        if cur is None or cur == ROT:
            yield "nothing there", st, True
        else:
            gg = g._replace(rotten=g.rotten | {cur if op[1][0] == "m" else (op[1], cur)})
            yield "", st._replace(files=setf(st, op[1], ROT, False)[0], ghost=gg), True
    elif k == "read":
        need = max((MAN[a].num for a in g.acked - g.rotten if MAN[a].num <= op[3]), default=0)
        bad = g.bad | ({"R2 reader answered older than an acknowledged one"} if MAN[op[1]].num < need else frozenset())
        yield "", st._replace(ghost=g._replace(reads=g.reads | ({op[1]} if op[2] else frozenset()), bad=bad)), True
    elif k == "pinned":
        yield "", st._replace(ghost=g._replace(pinned=g.pinned | {op[1]})), True
    elif k == "conflict":
        top = max((int(n[1:]) for n, _ in st.files if n[0] == "t"), default=op[1] + 1)
        bad = g.bad if top > op[1] else g.bad | {"L1 the highest term's writer was told ConflictError"}
        yield "", st._replace(ghost=g._replace(bad=bad)), True
    elif k == "fenced":                # (.., term, root): told by a root that it is no longer the writer
        top = max(int(n[2:]) for n, _ in st.files if n[:2] == "t" + op[2])
        bad = g.bad if top > op[1] else g.bad | {"L1 a root told its highest term's writer that it is fenced"}
        yield "", st._replace(ghost=g._replace(bad=bad)), True
    elif k == "bad":
        yield "", st._replace(ghost=g._replace(bad=g.bad | {op[1]})), True
    else:
        raise AssertionError(op)


def crashes(st):
    """Every way a power cut may resolve the un-synced names."""
    pend = sorted(st.pend, key=str)
    for bits in range(1 << len(pend)):
        f = set(st.files)
        for i, (n, old) in enumerate(pend):
            if bits >> i & 1:
                cur = fget(f, n)
                if cur is not None:
                    f.discard((n, cur))
                if old is not None:
                    f.add((n, old))
        lost = [n for i, (n, _) in enumerate(pend) if bits >> i & 1]
        yield "power cut, reverted " + (",".join(lost) or "nothing"), frozenset(f)


def show(op, resp):
    def v(x, name=""):
        if name[:1] == "m" and isinstance(x, int) and not isinstance(x, bool):
            m = MAN[x]
            return f"{m.num}(t{m.term},parent {MAN[m.parent].num if m.parent is not None else None}" + \
                (f",rollback to {m.target}" if m.target else "") + f",drops {sorted(m.retired)})"
        return str(x)
    if op[0] == "list":
        return f"list {op[1]} -> " + " ".join(n + ("" if n[0] in "b" else ("=" + v(x, n))) for n, x in resp)
    if op[0] in ("create", "put"):
        return f"{op[0]} {op[1]}={v(op[2], op[1])}" + ("" if resp is True else f" -> {resp}")
    if op[0] in ("ack", "adopt", "read"):
        return f"{op[0].upper()} {v(op[1], 'm')}" + (f" settled={op[2]}" if op[0] == "read" else "")
    return " ".join(map(str, op)) + ("" if resp is True else f" -> {resp}")


def explore(V, procs, init, check, max_states=300_000, max_sw=None, max_s=60.0, stop=1, terminal=None, until=None):
    """procs: list of (name, maker, starts_after_crashes). Returns dict of violation -> shortest trace, and statistics."""
    t0 = time.process_time()
    INTERN.clear()
    LST.clear()
    progs = [Prog(m) for _, m, _ in procs]
    names = [n for n, _, _ in procs]
    s0 = init._replace(nodes=tuple(p.root for p in progs), last=-1, sw=0)
    parent = {s0: None}
    q = deque([s0])
    found, cache = {}, {}
    full = True

    def trace(s):
        out = []
        while parent[s] is not None:
            s, lab = parent[s]
            if not isinstance(lab, str):
                i, op, resp, note = lab
                lab = f"{names[i]}: {show(op, resp)}" + (f" [{note}]" if note else "")
            out.append(lab)
        return out[::-1]

    def verdict(s):
        k = (s.files, s.ghost)
        if k not in cache:
            cache[k] = check(V, s)
        return cache[k]

    while q:
        if len(parent) > max_states or time.process_time() - t0 > max_s:
            full = False
            break
        s = q.popleft()
        succ = []
        alive = False
        for i, nid in enumerate(s.nodes):
            if nid < 0 or procs[i][2] > s.crashes:
                continue
            alive = True
            sw = s.sw
            if max_sw is not None and s.last not in (-1, i) and s.nodes[s.last] >= 0:
                sw += 1
                if sw > max_sw:
                    continue
            op = progs[i].ops[nid]
            for note, ns, resp in apply(s, op, V):
                nn = s.nodes[:i] + (progs[i].child(nid, resp),) + s.nodes[i + 1:]
                succ.append(((i, op, resp, note),
                             ns._replace(nodes=nn, last=i if max_sw is not None else -1, sw=sw)))
        for fl in s.flying:
            kind, name, val = fl
            ns = s._replace(flying=s.flying - {fl})
            if kind == "del":
                f, p = setf(s, name, None, V.posix)
                ns = ns._replace(files=f, pend=p)
            elif fget(s.files, name) is None:
                f, p = setf(s, name, val, V.posix)
                ns = ns._replace(files=f, pend=p)
                if V.counts(f, val):
                    ns = ns._replace(ghost=s.ghost._replace(created=s.ghost.created | {val}))
            succ.append((f"net: late {fl[0]} {fl[1]} arrives", ns))
        if V.posix and s.crashes < V.max_crashes:
            for lab, f in crashes(s):
                nn = tuple(-1 if (procs[i][2] <= s.crashes) else n for i, n in enumerate(s.nodes))
                succ.append((lab, s._replace(files=f, pend=frozenset(), nodes=nn, crashes=s.crashes + 1, last=-1)))
        if not alive and not s.flying and terminal:
            for b in terminal(V, s):
                if b not in found:
                    found[b] = trace(s)
        for lab, ns in succ:
            if ns in parent:
                continue
            g = intern(ns.ghost)
            ns = ns._replace(ghost=g, nodes=intern(ns.nodes))
            parent[ns] = (s, lab)
            bad = verdict(ns)
            if bad:
                for b in bad:
                    if b not in found:
                        found[b] = trace(ns)
                if len(found) >= stop or (until is not None and any(b.startswith(until) for b in bad)):
                    return found, dict(states=len(parent), full=False, cpu=round(time.process_time() - t0, 1))
                continue
            q.append(ns)
    return found, dict(states=len(parent), full=full, cpu=round(time.process_time() - t0, 1))


def walk(V, procs, init, check, seconds, seed, stay=0.85):
    """Random deep runs: keep one process going for a while, then switch. Returns violations with the shortest trace seen."""
    import random
    rnd = random.Random(seed)
    t0 = time.process_time()
    runs = steps = 0
    found = {}
    progs = [Prog(m) for _, m, _ in procs]
    while time.process_time() - t0 < seconds:
        runs += 1
        if runs % 200 == 0:
            INTERN.clear(); LST.clear(); progs = [Prog(m) for _, m, _ in procs]
        st = init._replace(nodes=tuple(p.root for p in progs))
        tr, cur = [], None
        p_stay = rnd.choice([0.5, 0.8, 0.92, 0.97])
        while True:
            live = [i for i, n in enumerate(st.nodes) if n >= 0 and procs[i][2] <= st.crashes]
            if not live and not st.flying:
                break
            if st.flying and (not live or rnd.random() < 0.03):
                kind, name, val = fl = rnd.choice(sorted(st.flying, key=str))
                st = st._replace(flying=st.flying - {fl})
                if kind == "del":
                    f, p = setf(st, name, None, V.posix)
                    st = st._replace(files=f, pend=p)
                elif fget(st.files, name) is None:
                    f, p = setf(st, name, val, V.posix)
                    st = st._replace(files=f, pend=p)
                    if V.counts(f, val):
                        st = st._replace(ghost=st.ghost._replace(created=st.ghost.created | {val}))
                tr.append(f"net: late {kind} {name}")
            elif V.posix and st.crashes < V.max_crashes and rnd.random() < 0.02:
                lab, f = rnd.choice(list(crashes(st)))
                nn = tuple(-1 if procs[i][2] <= st.crashes else n for i, n in enumerate(st.nodes))
                st = st._replace(files=f, pend=frozenset(), nodes=nn, crashes=st.crashes + 1)
                tr.append(lab)
            else:
                if cur not in live or rnd.random() > p_stay:
                    cur = rnd.choice(live)
                op = progs[cur].ops[st.nodes[cur]]
                outs = list(apply(st, op, V))
                note, ns, resp = outs[0] if len(outs) == 1 or rnd.random() < 0.8 else rnd.choice(outs)
                st = ns._replace(nodes=st.nodes[:cur] + (progs[cur].child(st.nodes[cur], resp),) + st.nodes[cur + 1:])
                tr.append((cur, op, resp, note))
            steps += 1
            if isinstance(tr[-1], str) or tr[-1][1][0] not in ("list", "get", "rstart"):
                bad = check(V, st)
                if bad:
                    for b in bad:
                        if b not in found or len(found[b]) > len(tr):
                            found[b] = [x if isinstance(x, str) else f"{procs[x[0]][0]}: {show(x[1], x[2])}" + (f" [{x[3]}]" if x[3] else "") for x in tr]
                    break
    return found, dict(runs=runs, steps=steps, cpu=round(time.process_time() - t0, 1))
