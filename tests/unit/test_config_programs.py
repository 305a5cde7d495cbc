from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import inspect as kinds

from longwatch.config.containers import ContainerSettings
from longwatch.config.programs import ProgramSettings
from longwatch.config.settings import Settings, SupervisorSettings, load_settings
from longwatch.config.tables import (
    BackoffSettings,
    HealthSettings,
    LimitsSettings,
    OutputSettings,
    ProbeSettings,
)
from longwatch.config.value_checks import TypeInfo, union_members, without_metadata
from longwatch.errors import ConfigError
from longwatch.supervisor.dependencies import Condition, Readiness


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, **environ: str) -> Settings:
    path = Path("longwatch.toml")
    path.write_text(text)
    return load_settings(path=path, environ=environ, flags={})


def faults_of(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    return [str(fault).removeprefix("longwatch.toml: ") for fault in caught.value.faults]


def fault_of(text: str, **environ: str) -> str:
    [fault] = faults_of(text, **environ)
    return fault


def programs(**tables: str) -> str:
    """The text of a file with these programs, each with a command."""
    return "".join(
        f"[program.{name}]\ncommand = ['true']\n{text}\n" for name, text in tables.items()
    )


def test_a_program_needs_no_more_than_a_command() -> None:
    [program] = load("[program.web]\ncommand = 'serve --fast'").program.values()

    assert ["serve", "--fast"] == program.argv
    assert (signal.SIGTERM, 15.0, {}, True, False) == (
        program.stop_signal_number, program.stop_grace, program.dependencies,
        program.autostart, program.critical
    )  # fmt: skip
    assert program.effective_health is None


def test_a_whole_program_is_read() -> None:
    settings = load("""
        [supervisor]
        keep_days = "off"
        shutdown_timeout = 40
        [program.db]
        command = ["postgres"]
        [program.web]
        command = ["serve"]
        cwd = "app"
        env.A = "1"
        user = "www-data"
        umask = "027"
        restart = "always"
        backoff.initial = 0
        health = {command = "probe it", startup = 60}
        limits = {memory = "1GiB", open_files = 100, nice = 5}
        ready = "notify"
        ready_timeout = 90
        critical = true
        autostart = false
        depends_on = {db = "started"}
        log = {console = false, keep = 1}
    """)

    assert SupervisorSettings(keep_days="off", shutdown_timeout=40.0) == settings.supervisor
    assert ProgramSettings(
        command=["serve"], cwd="app", env={"A": "1"}, user="www-data", umask="027",
        restart="always", backoff=BackoffSettings(initial=0.0),
        health=HealthSettings(command="probe it", startup=60.0),
        limits=LimitsSettings(memory="1GiB", open_files=100, nice=5),
        ready=Readiness.NOTIFY, ready_timeout=90.0, critical=True, autostart=False,
        depends_on={"db": Condition.STARTED}, log=OutputSettings(console=False, keep=1),
    ) == settings.program["web"]  # fmt: skip


def test_a_list_of_dependencies_waits_for_each_to_be_ready() -> None:
    settings = load(
        programs(
            a="",
            b="",
            c="depends_on = ['a', 'b']",
            d="depends_on = {a = 'completed', b = 'started'}",
        )
    )

    assert {"a": Condition.READY, "b": Condition.READY} == settings.program["c"].dependencies
    assert {"a": Condition.COMPLETED, "b": Condition.STARTED} == settings.program["d"].dependencies


@pytest.mark.parametrize(
    ("health", "kind"),
    [
        ("{}", "http"),
        ("{command = 'true'}", "exec"),
        ("{kind = 'tcp'}", "tcp"),
        ("{kind = 'heartbeat', startup = 5}", "heartbeat"),
    ],
)
def test_the_kind_of_check_is_http_unless_there_is_a_command_or_a_kind(
    health: str, kind: str
) -> None:
    asked = load(programs(web=f"health = {health}")).effective_health("web")

    assert asked is not None
    assert kind == asked.effective_kind


@pytest.mark.parametrize(
    ("health", "environ", "port"),
    [
        ("{}", {}, 8080),
        ("{}", {"PORT": "3000"}, 3000),
        ("{kind = 'tcp', port = 9000}", {"PORT": "3000"}, 9000),
        ("{command = 'true'}", {"PORT": "3000"}, None),
        ("{kind = 'heartbeat'}", {}, None),
        ("{enabled = false}", {}, None),
        ("{port = 9000}", {"HEALTH_CHECK_ENABLED": "no"}, None),
        ("{port = 9000}", {"HEALTH_CHECK_ENABLED": "yes"}, 9000),
    ],
)
def test_a_program_is_asked_on_its_own_port_else_on_port_of_the_environment(
    health: str, environ: dict[str, str], port: int | None
) -> None:
    assert port == load(programs(web=f"health = {health}"), **environ).health_port("web")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[program.web]",
            (
                'program.web.command: is missing; set it to a list such as ["python3", '
                '"worker.py"], or a text that is split'
            ),
        ),
        (programs(web="comand = 'x'"), "program.web.comand: unknown key; did you mean command?"),
        ("programs.web.command = 'x'", "programs: unknown key; did you mean program?"),
        ("program.command = 'x'", 'program.command: must be a table, not "x"'),
        (
            "program.'a b'.command = 'x'",
            (
                "program.\"a b\": must be letters, digits, '.', '_' and '-', 64 at most, no '.' "
                'first, not "a b"'
            ),
        ),
        (programs(watchdog=""), "program.watchdog: is the name of our own log; choose another"),
        (
            programs(web="ready = 'healthy'"),
            (
                'program.web.ready: is "healthy", and nothing says how to ask for its health; add '
                'a health table, or say "up"'
            ),
        ),
        (
            programs(web="ready = 'heathy'"),
            (
                'program.web.ready: must be "up", "healthy", "notify" or "probe", not "heathy"; '
                "did you mean healthy?"
            ),
        ),
        (
            programs(web="health.kind = 'exec'"),
            (
                'program.web.health.command: is missing, and kind is "exec"; write the command '
                "that checks, or choose another kind"
            ),
        ),
        (
            programs(web="health = {kind = 'tcp', command = 'true'}"),
            (
                'program.web.health.command: is for kind "exec", and kind is "tcp"; take one of '
                "the two out"
            ),
        ),
        (
            programs(web="health.command = []"),
            (
                "program.web.health.command: names no program; write the program first, then its "
                "arguments"
            ),
        ),
        (
            programs(database="", web="depends_on = ['databse']"),
            (
                "program.web.depends_on: waits for 'databse', which is not a program; did you mean "
                "database?"
            ),
        ),
        (
            programs(
                a="depends_on = ['b']", b="depends_on = {c = 'started'}", c="depends_on = ['a']"
            ),
            "program.a.depends_on: waits for itself: a → b → c → a; remove one of them",
        ),
        (
            programs(a="depends_on = ['a']"),
            "program.a.depends_on: waits for itself: a → a; remove one of them",
        ),
        (
            programs(db="", web="depends_on = {db = 'redy'}"),
            (
                'program.web.depends_on.db: must be "started", "ready" or "completed", not '
                '"redy"; did you mean ready?'
            ),
        ),
        (
            programs(db="restart = 'always'", web="depends_on = {db = 'completed'}"),
            (
                "program.web.depends_on: waits until 'db' is completed, which is started "
                "again even after it ended well;"
                ' wait for "ready", or let db have restart = "on-failure"'
            ),
        ),
        (
            programs(a="health = {}", b="health.kind = 'tcp'"),
            (
                "program.b.health.port: is 8080, on which a is asked for its health too; give "
                "each its own"
            ),
        ),
    ],
)
def test_a_wrong_program_is_told_with_its_place_and_the_cure(text: str, fault: str) -> None:
    assert fault == fault_of(text)


def test_a_program_that_is_always_restarted_but_not_after_0_can_be_completed() -> None:
    text = programs(
        db="restart = 'always'\nno_restart_codes = [0]", web="depends_on = {db = 'completed'}"
    )

    assert 2 == len(load(text).program)


def test_a_program_that_is_always_restarted_can_be_waited_for_until_it_is_ready() -> None:
    assert 2 == len(
        load(programs(db="restart = 'always'", web="depends_on = {db = 'ready'}")).program
    )


def test_one_port_is_enough_for_programs_of_which_only_one_starts_by_itself() -> None:
    assert 2 == len(load(programs(a="health = {}", b="health = {}\nautostart = false")).program)


def test_checks_that_are_off_need_no_port() -> None:
    assert 2 == len(
        load(programs(a="health = {}", b="health = {}"), HEALTH_CHECK_ENABLED="0").program
    )


def test_faults_of_programs_and_between_them_are_told_at_once() -> None:
    text = programs(a="umask = 'x'", b="depends_on = ['a', 'c']", d="depends_on = ['d']")
    faults = faults_of(f"{text}[run]\nname = 5", PORT="x")

    places = {
        "environment variable PORT",
        "run.name",
        "program.a.umask",
        "program.b.depends_on",
        "program.d.depends_on",
    }
    assert (5, places) == (len(faults), {fault.partition(":")[0] for fault in faults})


# --- probes ---


@pytest.mark.parametrize(
    ("probe", "kind"),
    [
        ("{}", "http"),
        ("{command = 'true'}", "exec"),
        ("{script = 'live.sh'}", "script"),
        ("{kind = 'tcp', port = 5}", "tcp"),
        ("{kind = 'heartbeat'}", "heartbeat"),
    ],
)
def test_the_kind_of_a_probe_is_http_unless_it_has_a_script_a_command_or_a_kind(
    probe: str, kind: str
) -> None:
    made = load(programs(web=f"liveness = {probe}")).program["web"].liveness

    assert made is not None
    assert kind == made.effective_kind


@pytest.mark.parametrize(
    ("probe", "intervals"),
    [
        (ProbeSettings(), (1.0, 10.0)),
        (ProbeSettings(interval=1.0), (1.0, None)),
        (ProbeSettings(interval=7.0), (7.0, None)),
        (ProbeSettings(kind="heartbeat"), (10.0, None)),
        (ProbeSettings(kind="heartbeat", interval=2.0), (2.0, None)),
    ],
)
def test_a_probe_without_an_interval_is_made_every_second_and_after_a_success_every_ten(
    probe: ProbeSettings, intervals: tuple[float, float | None]
) -> None:
    assert intervals == (probe.effective_interval, probe.settled_interval)


@pytest.mark.parametrize(
    ("probe", "failures", "seconds"),
    [
        (ProbeSettings(), 5, 30.0),
        (ProbeSettings(failure_threshold=3), 3, 3.0),
        (ProbeSettings(failure_threshold=3, interval=2.0), 3, 6.0),
    ],
)
def test_five_failures_count_and_for_a_startup_probe_thirty(
    probe: ProbeSettings, failures: int, seconds: float
) -> None:
    assert (failures, seconds) == (probe.effective_failures, probe.startup_seconds)


@pytest.mark.parametrize("name", ["live.sh", "a", "A_b-c.1", ".hidden", "x" * 128])
def test_a_script_is_a_plain_file_name(name: str) -> None:
    made = load(programs(web=f"liveness.script = '{name}'")).program["web"].liveness

    assert ProbeSettings(script=name) == made


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a..b", "-x", "a/b", "./a", "a b", "a;b", "$(x)", "é", "x" * 129]
)
def test_a_script_with_any_other_name_is_refused(name: str) -> None:
    fault = fault_of(programs(web=f"liveness.script = '{name}'"))

    assert fault.startswith("program.web.liveness.script: must be a file name of up to 128 letters")


def test_probes_that_use_one_port_of_one_program_are_no_conflict() -> None:
    settings = load(programs(web="liveness.port = 9000\nreadiness = {port = 9000, path = '/r'}"))

    assert {"liveness.port": 9000, "readiness.port": 9000} == settings.probe_ports("web")


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("liveness = {}", {"liveness.port": 3000}),
        ("health = {}\nreadiness.port = 1", {"health.port": 3000, "readiness.port": 1}),
        ("startup.script = 'a'\nliveness.kind = 'heartbeat'", {}),
    ],
)
def test_probes_without_a_port_ask_on_port_of_the_environment(
    text: str, ports: dict[str, int]
) -> None:
    assert ports == load(programs(web=text), PORT="3000").probe_ports("web")
    assert {} == load(programs(web=text), HEALTH_CHECK_ENABLED="0").probe_ports("web")


NUMBER = (
    'must be a duration (more than 0, a year at most), for example 300, "90s" or "5m" '
    "(units: d, h, m, s, ms)"
)
BAD_PROBES = {
    "no command": (
        "liveness.kind = 'exec'",
        (
            'liveness.command: is missing, and kind is "exec"; write the command that checks, or '
            "choose another kind"
        ),
    ),
    "no script": (
        "liveness.kind = 'script'",
        (
            'liveness.script: is missing, and kind is "script"; write the name of the script, or '
            "choose another kind"
        ),
    ),
    "a script and a command": (
        "liveness = {script = 'a', command = 'true'}",
        'liveness.command: is for kind "exec", and kind is "script"; take one of the two out',
    ),
    "a command for another kind": (
        "liveness = {kind = 'tcp', command = ['true']}",
        'liveness.command: is for kind "exec", and kind is "tcp"; take one of the two out',
    ),
    "a script for another kind": (
        "liveness = {kind = 'http', script = 'a'}",
        'liveness.script: is for kind "script", and kind is "http"; take one of the two out',
    ),
    "a port for a script": (
        "liveness = {script = 'a', port = 5}",
        'liveness.port: is for kind "http" or "tcp", and kind is "script"; take one of the two out',
    ),
    "a path for tcp": (
        "liveness = {kind = 'tcp', path = '/x'}",
        'liveness.path: is for kind "http", and kind is "tcp"; take one of the two out',
    ),
    "a command that cannot be split": (
        'readiness.command = "a \'b"',
        (
            "readiness.command: cannot be split into words (no closing quotation); close the "
            "quotes, or write it as a list"
        ),
    ),
    "an unknown key": (
        "liveness.intervall = 1",
        "liveness.intervall: unknown key; did you mean interval?",
    ),
    "an unknown kind": (
        "liveness.kind = 'htpp'",
        (
            'liveness.kind: must be "exec", "heartbeat", "http", "script" or "tcp", not "htpp"; '
            "did you mean http?"
        ),
    ),
    "no interval": ("liveness.interval = 0", f"liveness.interval: {NUMBER}, not 0"),
    "no timeout": ("startup.timeout = -1", f"startup.timeout: {NUMBER}, not -1"),
    "no number": (
        "liveness.failure_threshold = 'many'",
        'liveness.failure_threshold: must be a whole number from 1 to 1000000, not "many"',
    ),
    "no failure": (
        "liveness.failure_threshold = 0",
        "liveness.failure_threshold: must be a whole number from 1 to 1000000, not 0",
    ),
    "half a success": (
        "readiness.success_threshold = 1.5",
        "readiness.success_threshold: must be a whole number from 1 to 1000000, not 1.5",
    ),
    "two ways to write liveness": (
        "health = {}\nliveness.port = 5",
        "health: is a liveness probe, and there is a liveness table; take one of the two out",
    ),
    "two ways to write startup": (
        "health.startup = 5\nstartup.port = 5",
        "health.startup: is set, and there is a startup table; take one of the two out",
    ),
    "a startup probe that passes twice": (
        "startup.success_threshold = 2",
        (
            "startup.success_threshold: must be 1, because a startup probe passes once, not 2; "
            "take it out"
        ),
    ),
    "a startup probe that waits": (
        "startup.start_grace = 2",
        (
            "startup.start_grace: is for liveness and readiness: a startup probe is made from the "
            "start; take it out"
        ),
    ),
    "a grace and a startup probe": (
        "startup = {}\nliveness.start_grace = 2",
        (
            "liveness.start_grace: is not waited for, because there is a startup probe; take one "
            "of the two out"
        ),
    ),
    "a grace of readiness after liveness": (
        "liveness = {}\nreadiness.start_grace = 2",
        (
            "readiness.start_grace: is not waited for, because readiness is probed once liveness "
            "has passed; take it out"
        ),
    ),
    "beats for readiness": (
        "readiness.kind = 'heartbeat'",
        (
            'readiness.kind: is "heartbeat", which is for liveness; say ready = "notify", or '
            "choose another kind"
        ),
    ),
    "beats for startup alone": (
        "startup.kind = 'heartbeat'\nliveness.port = 5",
        'startup.kind: is "heartbeat", and liveness is not; choose another kind',
    ),
    "ready by a probe that is not there": (
        "liveness = {}\nready = 'probe'",
        'ready: is "probe", and there is no readiness probe; add a readiness table, or say "up"',
    ),
    "healthy without a probe for it": (
        "readiness = {}\nready = 'healthy'",
        (
            'ready: is "healthy", and nothing says how to ask for its health; add a health table, '
            'or say "up"'
        ),
    ),
}


@pytest.mark.parametrize("case", BAD_PROBES)
def test_a_wrong_probe_is_a_fault_with_its_place_and_the_cure(case: str) -> None:
    text, fault = BAD_PROBES[case]

    assert f"program.web.{fault}" == fault_of(programs(web=text))


@pytest.mark.parametrize(
    "text",
    [
        "health = {}\nstartup.port = 5\nreadiness.port = 6",
        "health.kind = 'heartbeat'\nstartup.kind = 'heartbeat'",
        "liveness.kind = 'heartbeat'\nstartup.kind = 'heartbeat'",
        "readiness.start_grace = 2",
        "startup = {}\nready = 'healthy'",
        "liveness = {}\nreadiness = {}\nready = 'up'",
        "readiness = {}\nready = 'probe'",
    ],
)
def test_probes_that_go_together_are_no_fault(text: str) -> None:
    assert 1 == len(load(programs(web=text)).program)


@pytest.mark.parametrize(
    ("a", "b", "key"),
    [
        ("liveness = {}", "liveness.kind = 'tcp'", "liveness"),
        ("health = {}", "readiness = {}", "readiness"),
        ("startup.port = 5", "health.port = 5", "health"),
    ],
)
def test_two_programs_that_start_together_are_not_probed_on_one_port(
    a: str, b: str, key: str
) -> None:
    fault = fault_of(programs(a=a, b=b))

    assert fault.startswith(f"program.b.{key}.port: is ")
    assert fault.endswith("on which a is asked for its health too; give each its own")


def unions(kind: TypeInfo) -> Iterator[list[TypeInfo]]:
    """The members of every kind that is in the settings."""
    yield list(map(without_metadata, union_members(kind)))
    for member in map(without_metadata, union_members(kind)):
        match member:
            case kinds.StructType():
                for field in member.fields:
                    yield from unions(field.type)
            case kinds.DictType():
                yield from unions(member.value_type)
            case kinds.ListType():
                yield from unions(member.item_type)


def test_no_setting_is_a_list_or_table_or_else_a_text_with_a_pattern_which_msgspec_does_not_survive() -> (  # noqa: E501 - one name
    None
):
    containers = (kinds.ListType, kinds.DictType, kinds.StructType)
    mixed = [
        union
        for settings in (ProgramSettings, ContainerSettings)
        for union in unions(kinds.type_info(settings))
        if any(isinstance(kind, containers) for kind in union)
    ]

    assert mixed
    assert [] == [
        kind
        for union in mixed
        for kind in union
        if isinstance(kind, kinds.StrType) and kind.pattern
    ]
