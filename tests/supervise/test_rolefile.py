"""`pipeline.toml`: what is right is read, and what is wrong is named with its line, its role, its key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import NotFoundError, UsageError
from milepost.supervise.rolefile import read_plan
from milepost.supervise.roles import Plan, Ready

WHOLE = """
[role.sampler]
cmd = "python sample.py --worker {index}"
count = 8
depends_on = ["service", "trainer"]
until = "trainer"

[role.service]
cmd = ["python", "serve.py"]
ready = "tcp://127.0.0.1:7000"
ready_within = "2m"
until = ["trainer", "sampler"]
restart = "all"

[role.trainer]
cmd = ["python", "train.py"]
ranks = 2
depends_on = "service"
cwd = "train"
grace = "2m"
hang_after = "off"
max_failures = 5

[role.trainer.env]
OMP_NUM_THREADS = "1"
"""


def plan_of(tmp_path: Path, text: str) -> Plan:
    (tmp_path / "pipeline.toml").write_text(text)
    return read_plan(tmp_path / "pipeline.toml")


def faults_of(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        plan_of(tmp_path, text)
    assert caught.value.kind == "bad-pipeline"
    assert str(caught.value.facts["path"]) == str(tmp_path / "pipeline.toml")
    return caught.value.message.splitlines()


def test_a_whole_file_is_read_in_the_order_in_which_roles_start(tmp_path: Path) -> None:
    service, trainer, sampler = plan_of(tmp_path, WHOLE).roles
    assert (service.name, trainer.name, sampler.name) == ("service", "trainer", "sampler")
    assert (service.ready, service.ready_within_s, service.restart) == (Ready(host="127.0.0.1", port=7000), 120.0, "all")
    assert (trainer.count, trainer.is_ranks, trainer.restart, trainer.grace_s) == (2, True, "trainer", 120.0)
    assert (trainer.cwd, trainer.env, trainer.hang_after) == (tmp_path / "train", (("OMP_NUM_THREADS", "1"),), "off")
    assert (trainer.max_failures, trainer.depends_on) == (5, ("service",))
    assert sampler.command == ("python", "sample.py", "--worker", "{index}")
    assert (sampler.count, sampler.restart, sampler.cwd, sampler.until) == (8, "worker", tmp_path, ("trainer",))


def test_who_serves_others_gets_a_short_time_to_end_and_who_trains_a_long_one(tmp_path: Path) -> None:
    service, trainer, sampler = plan_of(tmp_path, WHOLE.replace('grace = "2m"', "")).roles
    assert (service.grace_s, trainer.grace_s, sampler.grace_s) == (5.0, 30.0, 5.0)


A = '[role.a]\ncmd = "true"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "there is no role; one begins with [role.NAME] and needs cmd"),
        (
            'rol = 1\n[role.a]\ncmd = "true"',
            'line 1, rol: unknown; the file holds roles only, each as [role.NAME]; did you mean "role"?',
        ),
        ("role = 3", "line 1, role: is no table; a role begins with [role.NAME]"),
        ("[role.a]\ncount = 2", 'line 1, role a, cmd: is lacking: the command, as ["python", "train.py"]'),
        ('[role.a]\ncmd = ""', "line 2, role a, cmd: is empty"),
        ("[role.a]\ncmd = []", "line 2, role a, cmd: is empty"),
        (
            "[role.a]\ncmd = 3",
            'line 2, role a, cmd: is a list of texts, as ["python", "train.py"], or one text, as "python train.py"',
        ),
        ('[role.a]\ncmd = "a \'b"', "line 2, role a, cmd: cannot be split into words: No closing quotation"),
        (
            '[role.a]\ncmd = "a && b"',
            'line 2, role a, cmd: && is for a shell, and there is none. If you need one: ["bash", "-c", "exec …"]',
        ),
        (A + 'restart = "always"', 'line 3, role a, restart: "always" is not known. Allowed: "worker", "trainer", "all"'),
        (A + "hang_after = 0", "line 3, role a, hang_after: 0 is no time at all: it is to be above 0"),
        (A + 'ready_within = "0s"', 'line 3, role a, ready_within: "0s" is no time at all: it is to be above 0'),
        (A + "count = 0", "line 3, role a, count: 0 is not a whole number from 1 to 4096"),
        (A + "count = true", "line 3, role a, count: True is not a whole number from 1 to 4096"),
        (A + 'count = "3"', 'line 3, role a, count: "3" is not a whole number from 1 to 4096'),
        (A + "max_failures = -2", "line 3, role a, max_failures: -2 is not a whole number from -1 (without a bound) to 1000000"),
        (
            A + 'ready = "localhost:70"',
            'line 3, role a, ready: write "tcp://localhost:70" for an address, "./localhost:70" for a file',
        ),
        (A + 'ready = "tcp://localhost:0"', 'line 3, role a, ready: "tcp://localhost:0": a port is a number from 1 to 65535'),
        (
            A + 'ready = "http://localhost:70"',
            'line 3, role a, ready: "http://localhost:70" is neither a path nor an address, as "tcp://127.0.0.1:7000"',
        ),
        (A + 'grace = "soon"', 'line 3, role a, grace: "soon" is not a length of time (like 90s, 15m, 12h, 7d or 2w)'),
        (A + "grace = -1", "line 3, role a, grace: -1 is not a length of time (like 90s, 15m, 12h, 7d or 2w)"),
        (A + 'hang_after = "0s"', 'line 3, role a, hang_after: "0s" is no time at all: it is to be above 0'),
        (A + "ready_within = 0", "line 3, role a, ready_within: 0 is no time at all: it is to be above 0"),
        (A + 'hang_after = "on"', 'line 3, role a, hang_after: "on" is not a length of time (like 90s, 15m, 12h, 7d or 2w)'),
        (A + "[role.a.env]\nN = 1", 'line 3, role a, env: N is to be text: write N = "1"'),
        (A + 'env = { "A-B" = "1" }', 'line 3, role a, env: "A-B" is not the name of an environment variable'),
        (A + 'env.MILEPOST_ATTEMPT = "3"', "line 3, role a, env: MILEPOST_ATTEMPT is set by milepost up itself"),
        (A + 'env.MILEPOST_STOP = "0"', "line 3, role a, env: MILEPOST_STOP is set by milepost up itself"),
        (A + 'env.MILEPOST_SKIP = "a:1"', "line 3, role a, env: MILEPOST_SKIP is set by milepost up itself"),
        (A + 'grace = "0s"', 'line 3, role a, grace: "0s" is no time at all: it is to be above 0'),
        (A + 'ranks = 2\nenv.RANK = "3"', "line 4, role a, env: RANK is set by milepost up itself"),
        (
            A + "count = 2\nranks = 2",
            "line 4, role a, ranks: and count exclude each other: count is for processes that do not know each other",
        ),
        (
            A + 'ranks = 2\nrestart = "worker"',
            'line 4, role a, restart: "worker" is not for ranks: they start together. Allowed: "trainer", "all"',
        ),
        (A + 'depends_on = ["aa"]', 'line 3, role a, depends_on: there is no role "aa"; did you mean "a"? Roles: a'),
        (A + 'depends_on = ["a"]', "line 3, role a, depends_on: names the role itself"),
        (A + 'until = "b"', 'line 3, role a, until: there is no role "b". Roles: a'),
        (A + "depends_on = [3]", 'line 3, role a, depends_on: is the name of a role, or a list of them, as ["service"]'),
        (
            '[role."a b"]\ncmd = "true"',
            "line 1, role a b: the name of a role is a letter, then letters, digits, _ and -, 63 at most",
        ),
        ('[role.all]\ncmd = "true"', "line 1, role all: this name is taken: 'milepost restart all' means every role"),
        (
            A + 'depends_on = "b"\n[role.b]\ncmd = "true"\ndepends_on = "a"',
            "line 3, role a, depends_on: goes in a circle (a -> b -> a): nothing could start first",
        ),
        (
            A + 'until = "b"\n[role.b]\ncmd = "true"\nuntil = "a"',
            "line 3, role a, until: goes in a circle (a -> b -> a): none of them would ever end",
        ),
    ],
)
def test_a_fault_is_named_with_its_line_its_role_its_key_and_what_is_allowed(tmp_path: Path, text: str, fault: str) -> None:
    assert faults_of(tmp_path, text) == ["pipeline.toml has a fault", fault]


def test_an_unknown_key_is_named_with_the_one_that_was_meant_and_all_that_are_allowed(tmp_path: Path) -> None:
    (_, fault) = faults_of(tmp_path, A + "cuont = 3")
    assert fault.startswith('line 3, role a, cuont: unknown; did you mean "count"? Allowed: cmd, count, ranks, ')


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    head, *faults = faults_of(tmp_path, "[role.a]\ncmd = 3\ncount = 0\n[role.b]\ngrace = false")
    assert head == "pipeline.toml has 4 faults"
    assert [fault.split(":")[0] for fault in faults] == [
        "line 2, role a, cmd",
        "line 3, role a, count",
        "line 5, role b, grace",
        "line 4, role b, cmd",
    ]


def test_what_is_no_toml_is_told_with_its_place(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, "[role.a]\ncmd = python train.py")
    assert fault.startswith("this is not TOML: ")
    assert "line 2" in fault
    (fault,) = faults_of(tmp_path, f"[role.a]\ncmd = {'[' * 5000}")
    assert fault.startswith("this is not TOML: ")


def test_a_file_that_is_not_there_is_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        read_plan(tmp_path / "pipeline.toml")
    assert caught.value.kind == "no-such-pipeline"


values = st.recursive(
    st.sampled_from(["a", "", "tcp://x:1", "\\u0000", "90s", "-1"]).map(lambda text: f'"{text}"')
    | st.sampled_from(["1", "-1", "true", "1.5", "nan", "inf", "1979-05-27", "0"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]") | inner.map(lambda each: f"{{ k = {each} }}")
    ),
    max_leaves=4,
)
KEYS = (
    "cmd",
    "count",
    "ranks",
    "restart",
    "depends_on",
    "until",
    "ready",
    "ready_within",
    "env",
    "cwd",
    "grace",
    "hang_after",
    "x",
)


@given(table=st.dictionaries(st.sampled_from(KEYS), values, max_size=6))
def test_whatever_a_role_holds_it_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, table: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("[role.a]\n" + "\n".join(f"{key} = {value}" for key, value in table.items()))
    try:
        (only,) = read_plan(path).roles
    except UsageError as error:
        found: str | float = error.kind
    else:
        found = only.grace_s
    assert found == "bad-pipeline" or (isinstance(found, float) and found >= 0)
