from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from leaks import no_leaks
from longwatch.app.flows import load_flow
from longwatch.errors import UsageError
from longwatch.host.identity import resolve_identity
from longwatch.workers import preflight
from longwatch.workers.import_path import FLOW_WORK_VARIABLE, load_group, load_object
from longwatch.workers.preflight import GroupInfo, inspect_group, split_import_path
from polling import eventually
from run_process import clean_environment, pids_with_token

LOOPS = """
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Jobs(MainLoop):
    def handle(self, request, context):
        pass

def loop(name=None, **more):
    return Jobs(requests=open_mailbox("sqlite:///jobs.db", "jobs"), name=name, **more)

"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The present directory, where modules are found; what is imported from it is forgotten
    afterwards.
    """
    known = {*sys.modules}
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in {*sys.modules} - known:
        del sys.modules[name]


def write(here: Path, text: str, name: str = "things") -> None:
    path = here / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(LOOPS + dedent(text))


def refusal(target: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_group(target)
    return str(caught.value)


# --- what a target may be ---


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("group = LoopGroup([loop('a'), loop('b')])", ["a", "b"]),
        ("group = loop('a')", ["a"]),
        ("group = [loop('a'), loop()]", ["a", "loop-1"]),
        ("group = (loop('a'),)", ["a"]),
        ("def group(): return LoopGroup([loop('a')])", ["a"]),
        ("def group(): return [loop('a'), loop('b')]", ["a", "b"]),
        ("group = lambda: loop('a')", ["a"]),
        (
            (
                "class group(Jobs):\n    def __init__(self): "
                "super().__init__(requests=open_mailbox('memory://', 'x'), name='a')"
            ),
            ["a"],
        ),
    ],
)
def test_a_target_is_a_group_a_loop_several_loops_or_what_makes_them(
    here: Path, text: str, names: list[str]
) -> None:
    write(here, text)
    assert names == list(load_group("things:group").names)


def test_it_may_be_in_a_package_and_inside_of_something(here: Path) -> None:
    write(here, "class shop:\n    group = LoopGroup([loop('a')])", "pack/things")
    assert ["a"] == list(load_group("pack.things:shop.group").names)


def test_the_present_directory_comes_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for `python app.py`, though somebody else's module has the name, too."""
    (here / "elsewhere").mkdir()
    write(here, "group = loop('elsewhere')", "elsewhere/things")
    write(here, "group = loop('here')")
    monkeypatch.syspath_prepend(str(here / "elsewhere"))
    assert ["here"] == list(load_group("things:group").names)


def test_looking_at_a_group_starts_nothing_and_opens_nothing(here: Path) -> None:
    write(here, "group = LoopGroup([loop('a')])")
    with no_leaks():
        load_group("things:group")
    assert not (here / "jobs.db").exists()


# --- what it may not be ---


@pytest.mark.parametrize(
    "target",
    ["", "things", "things:", ":group", "things:a b", "things.py", "../things:group", "a:b:c"],
)
def test_what_is_no_module_and_name_is_told_how_to_be_written(target: str) -> None:
    with pytest.raises(UsageError, match="write it as module:name"):
        split_import_path(target)


def test_a_module_that_is_not_there_is_told_with_where_it_was_looked_for(here: Path) -> None:
    said = refusal("nothing:group")
    assert f"the module 'nothing' of 'nothing:group' was not found, neither in {here} nor" in said
    write(here, "", "pack/things")
    assert "the module 'pack.other' of 'pack.other:group' was not found" in refusal(
        "pack.other:group"
    )


def test_a_module_that_misses_another_one_is_not_mistaken_for_missing(here: Path) -> None:
    write(here, "import thingumabob")
    with pytest.raises(ModuleNotFoundError, match="thingumabob"):
        load_group("things:group")


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        ("gruop = loop()", "things:group", "things has no 'group'; did you mean gruop?"),
        ("", "things:xyz", "things has no 'xyz'; define it there, as in: group = LoopGroup([...])"),
        ("class shop: pass", "things:shop.group", "things has no 'group'"),
        (
            "group = 5",
            "things:group",
            "is of type int; it has to be a LoopGroup, a loop, a list of loops, or a function",
        ),
        ("group = []", "things:group", "is of type list"),
        ("group = [loop(), 5]", "things:group", "is of type list"),
        ("group = [Jobs]", "things:group", "is of type list"),
        ("def group(): return None", "things:group", "is of type NoneType"),
        (
            "group = LoopGroup([loop()], watchdog_threshold=0)",
            "things:group",
            "watchdog_threshold (0 s) must be more than",
        ),
        ("group = LoopGroup([loop('a'), loop('a')])", "things:group", "more than one is called a"),
        (
            "class Odd(MainLoop):\n    def handle(self): pass\ngroup = Odd(requests=None)",
            "things:group",
            "def handle(self, request",
        ),
    ],
)
def test_what_cannot_be_run_is_told(here: Path, text: str, target: str, words: str) -> None:
    write(here, text)
    assert words in refusal(target)


def test_an_unknown_flow_is_shown_how_a_flow_is_defined(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, "")
    monkeypatch.setenv(FLOW_WORK_VARIABLE, "{}")
    assert "as in: flow = Flow(store, graphs=[...])" in refusal("things:xyz")
    with pytest.raises(UsageError, match=r"as in: flow = Flow\("), load_flow("things:xyz"):
        pass


def test_the_nearest_name_of_a_package_with_lazy_names_is_suggested() -> None:
    with pytest.raises(UsageError, match="has no 'contain'; did you mean contains"):
        load_object("longwatch.evals:contain", example="def judge(output, expected): ...")


# --- a look from another process ---


def inspect_target(here: Path, target: str = "things:group") -> GroupInfo:
    return inspect_group(target, cwd=here, env=clean_environment())


def refused(here: Path, target: str = "things:group") -> str:
    with pytest.raises(UsageError) as caught:
        inspect_target(here, target)
    said = str(caught.value)
    assert 1 == len(said.splitlines())
    return said


def test_a_parent_learns_what_it_has_to_know_and_imports_nothing_itself(tmp_path: Path) -> None:
    text = """
    group = LoopGroup(
        [loop('a', shutdown_timeout=50), loop('b')], health_port=8123, health_host="127.0.0.1",
        watchdog_threshold=99, shutdown_timeout=7, max_processing_seconds=60,
    )"""
    write(tmp_path, text)
    expected = GroupInfo(
        loops=("a", "b"),
        health_host="127.0.0.1",
        health_port=8123,
        shutdown_timeout=50.0,
        watchdog_threshold=99,
        timeout_problems=(
            (
                "watchdog_interval",
                "60 s is not less than a third of watchdog_threshold: set it below 33",
            ),
        ),
    )
    assert expected == inspect_target(tmp_path)
    assert "things" not in sys.modules


@pytest.mark.parametrize(
    "noise",
    [
        "print('loading', end='')",
        "import atexit; atexit.register(print, 'bye')",
        "import os; os.write(1, b'\\xff\\xfe\\n')",
        "import sys; sys.stdout = sys.stderr",
        "import warnings; warnings.warn('mind this')",
    ],
)
def test_a_module_may_say_what_it_likes(tmp_path: Path, noise: str) -> None:
    write(tmp_path, f"{noise}\ngroup = loop('a')")
    assert ("a",) == inspect_target(tmp_path).loops


BROKEN = {
    "a module that is missing": (
        "import thingumabob",
        ["ModuleNotFoundError: No module named 'thingu", "things.py, line 12)"],
    ),
    "an error": ("1 / 0", ["ZeroDivisionError: division by zero", "things.py, line 12)"]),
    "an error of two lines": (r"raise ValueError('one\ntwo')", ["ValueError: one two"]),
    "several errors": (
        "raise ExceptionGroup('many', [ValueError('one')])",
        ["ExceptionGroup: many (1 sub-exception)"],
    ),
    "an error of a library": (
        "import os\nos.environ['NOT_SET']",
        ["KeyError: 'NOT_SET'", "things.py, line 13)"],
    ),
    "no Python": ("def x(:", ["SyntaxError: invalid syntax (things.py, line 12)"]),
    "an exit": ("import sys; sys.exit(0)", ["SystemExit: 0"]),
    "a hard exit": ("import os; os._exit(0)", ["ended without output"]),
    "a crash": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        ["ended without output"],
    ),
    "a function that raises": (
        "def group(): raise RuntimeError('no')",
        ["RuntimeError: no", "things.py, line 12)"],
    ),
    "an error with a password": (
        "raise ValueError('no answer from postgresql://me:hunter2@db/x')",
        ["ValueError: no answer from postgresql://***@db/x"],
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_module_that_cannot_be_imported_is_told_in_one_line_with_its_place(
    tmp_path: Path, what: str
) -> None:
    text, words = BROKEN[what]
    write(tmp_path, text)
    said = refused(tmp_path)
    assert said.startswith("'things:group' cannot be imported: ")
    assert [] == [word for word in words if word not in said], said


def test_a_group_that_cannot_be_run_is_told_in_its_own_words(tmp_path: Path) -> None:
    write(tmp_path, "group = LoopGroup([loop('a'), loop('a')])")
    assert "loops of a group need different names; more than one is called a" == refused(tmp_path)


def test_an_import_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_IMPORT_TIMEOUT", 1.0)
    write(tmp_path, "import time; time.sleep(1000)", "things_that_hang")
    said = refused(tmp_path, "things_that_hang:group")
    assert (
        "'things_that_hang:group': importing it takes longer than 1 s; start nothing at import"
        == said
    )
    assert [] == pids_with_token("things_that_hang:group")


def test_a_signal_that_we_hold_back_ends_an_import_all_the_same(tmp_path: Path) -> None:
    """Ctrl-C reaches every process of the terminal, and the parent has its signals blocked while
    it starts.
    """
    write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert "cannot be imported" in refused(tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody can look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")
def test_it_is_imported_as_the_user_that_will_run_it(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of an interpreter, which that user may not be able to reach: something that says
    who it is.
    """
    stand_in = open_folder / "python"
    facts = (
        '{"loops": ["%s"], "health_host": "", "health_port": null, "shutdown_timeout": 1, '
        '"watchdog_threshold": null}'
    )
    stand_in.write_text(
        f"#!/bin/sh\nprintf 'longwatch-group {facts}\\n' \"$(id -u) $(id -g) $(id -G)\"\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    nobody = resolve_identity("nobody")
    found = inspect_group("things:group", cwd=open_folder, env=clean_environment(), identity=nobody)
    assert (f"{nobody.uid} {nobody.gid} {' '.join(map(str, nobody.groups))}",) == found.loops
    stand_in.chmod(0o700)
    with pytest.raises(UsageError, match="cannot be inspected: permission denied"):
        inspect_group("things:group", cwd=open_folder, env=clean_environment(), identity=nobody)


def test_nothing_of_a_look_is_left(tmp_path: Path) -> None:
    write(tmp_path, "group = loop('a')", "things_to_look_at")
    inspect_target(tmp_path, "things_to_look_at:group")
    assert eventually(lambda: pids_with_token("things_to_look_at:group") == [])
    assert ["things_to_look_at.py"] == [
        path.name for path in tmp_path.iterdir() if path.name != "__pycache__"
    ]
