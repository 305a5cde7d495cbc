from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from guardian_fixture import TIMEOUT, GuardianFixture, LineSink, running_guardian
from leaks import no_descriptor_leaks
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host import guardian as program
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import KILL_NOW, ProcessEnd, ProcessSpec
from longwatch.host.service import Service
from longwatch.testing import check_service


def ended(ending: ProcessEnd) -> tuple[str, int, int]:
    return str(ending.cause), ending.killed, ending.survivors


# --- how children end -----------------------------------------------------------------------------


def test_what_a_child_prints_and_its_exit_code_come_back(guardian: GuardianFixture) -> None:
    child = guardian.start(["echo", "-n", "hello", "world"])
    assert ("exit 0", 0, 0) == ended(child.wait())
    assert b"hello world\n" == child.out.data


@pytest.mark.parametrize("code", [1, 2, 77, 128, 255])
def test_an_exit_code_is_told(guardian_without_cgroups: GuardianFixture, code: int) -> None:
    assert (f"exit {code}", 0, 0) == ended(
        guardian_without_cgroups.spawn(f"os._exit({code})").wait()
    )


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, 64]
)
def test_a_signal_is_told(guardian_without_cgroups: GuardianFixture, signum: int) -> None:
    assert (f"signal {int(signum)}", 0, 0) == ended(
        guardian_without_cgroups.spawn(f"os.kill(os.getpid(), {int(signum)}); rest()").wait()
    )


def test_the_ending_tells_what_the_leader_used(guardian_without_cgroups: GuardianFixture) -> None:
    child = guardian_without_cgroups.spawn(
        "x = bytearray(20_000_000)\nwhile sum(os.times()[:2]) < 0.05: pass"
    )
    ending = child.wait()
    assert child.pid == ending.pid
    assert 0.05 <= ending.cpu_seconds
    assert 20_000_000 < ending.max_rss < 500_000_000


def test_an_ending_can_be_asked_for_again_even_when_the_guardian_is_gone(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    child = guardian_without_cgroups.spawn("sys.exit(5)")
    first = child.wait()
    assert first == child.wait()
    guardian_without_cgroups.guardian.stop()
    assert first == child.wait()
    assert first == child.stop(KILL_NOW)


def test_many_children_at_once_are_told_apart(guardian: GuardianFixture) -> None:
    children = [guardian.spawn(f"say('I am {code}'); sys.exit({code})") for code in range(30)]
    assert [(f"exit {code}", 0, 0) for code in range(30)] == [
        ended(child.wait()) for child in children
    ]
    assert [f"I am {code}\n".encode() for code in range(30)] == [
        child.out.data for child in children
    ]


def test_a_signal_goes_to_the_group_or_to_the_leader_alone(guardian: GuardianFixture) -> None:
    child = guardian.spawn("""
        def heard(*_):
            say("heard", "leader" if leader == os.getpid() else "member")
        leader = os.getpid()
        signal.signal(signal.SIGUSR1, heard)
        if os.fork() == 0:
            signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))
            say("ready")
            rest()
        rest()
    """)
    child.out.wait_for_text("ready")
    child.signal(signal.SIGUSR1, group=False)
    child.out.wait_for_text("heard leader")
    assert b"member" not in child.out.data
    child.signal(signal.SIGUSR1)
    child.out.wait_for_text("heard member")
    assert ("signal 9", 2, 0) == ended(child.kill())


def test_what_is_said_to_a_child_that_has_ended_is_heard_by_nobody(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    child = guardian_without_cgroups.spawn("pass")
    child.wait()
    child.signal(signal.SIGKILL)
    child.kill()


# --- what cannot be started -----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "noformat").write_bytes(b"\x00\x01\x02 not a program")
    (tmp_path / "noformat").chmod(0o755)
    (tmp_path / "badshebang").write_text("#!/no/such/interpreter\n")
    (tmp_path / "badshebang").chmod(0o755)
    return tmp_path


UNSTARTABLE = {
    "missing": (
        "/no/such/program",
        None,
        errno.ENOENT,
        "cannot execute '/no/such/program': No such file or directory",
    ),
    "nowhere in the path": (
        "no-such-program",
        None,
        errno.ENOENT,
        "cannot execute 'no-such-program': No such file or directory",
    ),
    "not executable": (
        "{files}/plain",
        None,
        errno.EACCES,
        "cannot execute '{files}/plain': Permission denied",
    ),
    "a directory": (
        "{files}/folder",
        None,
        errno.EACCES,
        "cannot execute '{files}/folder': Permission denied",
    ),
    "no program": (
        "{files}/noformat",
        None,
        errno.ENOEXEC,
        "cannot execute '{files}/noformat': Exec format error",
    ),
    "no interpreter": (
        "{files}/badshebang",
        None,
        errno.ENOENT,
        "cannot execute '{files}/badshebang': No such file",
    ),
    "no directory": (
        "true",
        "{files}/nowhere",
        errno.ENOENT,
        "cannot enter '{files}/nowhere': No such file or directory",
    ),
    "a file as directory": (
        "true",
        "{files}/plain",
        errno.ENOTDIR,
        "cannot enter '{files}/plain': Not a directory",
    ),
    "a NUL": ("tr\0ue", None, 0, "cannot execute 'tr\\x00ue'"),
    "no name": ("", None, 0, "cannot execute ''"),
}


@pytest.mark.parametrize("case", UNSTARTABLE)
def test_what_cannot_be_started_is_told_with_the_reason_and_leaves_nothing(
    guardian: GuardianFixture, files: Path, case: str
) -> None:
    command, cwd, number, words = UNSTARTABLE[case]
    with no_descriptor_leaks(), pytest.raises(SpawnError) as caught:
        guardian.start([command.format(files=files)], cwd=cwd and cwd.format(files=files))
    assert number == caught.value.errno
    assert words.format(files=files) in str(caught.value)
    assert {} == guardian.guardian._children
    assert ("exit 0", 0, 0) == ended(guardian.start(["true"]).wait())


def test_an_empty_command_is_told(guardian_without_cgroups: GuardianFixture) -> None:
    with pytest.raises(SpawnError):
        guardian_without_cgroups.start([])


@pytest.mark.parametrize("size", [200_000, 9_000_000])
def test_a_command_too_large_for_the_system_is_told_and_leaves_nothing(
    guardian_without_cgroups: GuardianFixture, size: int
) -> None:
    with no_descriptor_leaks(), pytest.raises(SpawnError) as caught:
        guardian_without_cgroups.start(["echo", "x" * size])
    assert errno.E2BIG == caught.value.errno
    assert {} == guardian_without_cgroups.guardian._children
    assert ("exit 0", 0, 0) == ended(guardian_without_cgroups.start(["true"]).wait())


def test_a_large_command_that_the_system_takes_arrives_whole(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    words = ["w" * 100_000] * 8
    child = guardian_without_cgroups.spawn("say(sum(map(len, sys.argv[2:])))", *words)
    assert ("exit 0", 0, 0) == ended(child.wait())
    assert b"800000\n" == child.out.data


def test_a_working_directory_that_was_removed_is_told_and_leaves_nothing(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with no_descriptor_leaks(), pytest.raises(SpawnError, match="working directory"):
        guardian_without_cgroups.start(["true"])
    monkeypatch.undo()
    assert {} == guardian_without_cgroups.guardian._children


def test_no_more_descriptors_here_are_told_and_leave_nothing(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    with no_descriptor_leaks(), few_descriptors(3), pytest.raises(SpawnError) as caught:
        guardian_without_cgroups.start(["true"], stdout=LineSink(), stderr=LineSink())
    assert errno.EMFILE == caught.value.errno
    assert {} == guardian_without_cgroups.guardian._children
    assert ("exit 0", 0, 0) == ended(guardian_without_cgroups.start(["true"]).wait())


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """No more than so many can be opened."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + count, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


# --- what a child finds ---------------------------------------------------------------------------


def test_a_child_finds_its_directory_its_environment_and_its_mark(
    guardian: GuardianFixture, tmp_path: Path
) -> None:
    child = guardian.start(
        ["/bin/sh", "-c", "pwd; exec /usr/bin/env"],
        cwd=str(tmp_path),
        env={"A": "a b", "B": "", "PWD": "/"},
    )
    child.wait()
    lines = child.out.data.decode().splitlines()
    assert str(tmp_path) == lines[0]
    assert ["A=a b", "B=", f"LONGWATCH_OWNER={child.child.mark}"] == sorted(
        line for line in lines[1:] if "PWD=" not in line
    )


def test_without_a_directory_it_finds_ours(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    child = guardian_without_cgroups.start(["pwd"])
    child.wait()
    assert f"{tmp_path}\n" == child.out.data.decode()


def test_a_command_is_looked_up_in_the_path_of_its_own_environment(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path
) -> None:
    tool = tmp_path / "my-tool"
    tool.write_text("#!/bin/sh\necho found it\n")
    tool.chmod(0o755)
    child = guardian_without_cgroups.start(["my-tool"], env={"PATH": f"/no/where:{tmp_path}"})
    child.wait()
    assert b"found it\n" == child.out.data


def test_bytes_that_are_no_text_arrive_as_they_are(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    odd = os.fsdecode(b"\xff\xfe-\xc3")
    child = guardian_without_cgroups.spawn(
        "os.write(1, os.fsencode(sys.argv[2]) + os.environb[b'ODD'] + b'\\n')",
        odd,
        env={"ODD": odd},
    )
    child.wait()
    assert b"\xff\xfe-\xc3" * 2 + b"\n" == child.out.data


def test_a_child_reads_what_it_is_given_and_its_two_outputs_are_kept_apart(
    guardian: GuardianFixture,
) -> None:
    reader, writer = os.pipe()
    errors = LineSink()
    child = guardian.spawn(
        "os.write(2, b'bad\\n'); say(sys.stdin.read().upper())", stdin=reader, stderr=errors
    )
    os.close(reader)
    os.write(writer, b"shout")
    os.close(writer)
    assert ("exit 0", 0, 0) == ended(child.wait())
    assert (b"SHOUT\n", b"bad\n") == (child.out.data, errors.data)


def test_an_output_may_be_a_descriptor_and_both_may_be_the_same(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as file:
        guardian_without_cgroups.spawn(
            "say('one'); os.write(2, b'two\\n')", stdout=file.fileno(), stderr=file.fileno()
        ).wait()
    assert "one\ntwo\n" == (tmp_path / "out").read_text()


def test_what_is_not_given_is_dev_null_and_so_is_a_descriptor_that_is_closed(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    closed = os.dup(0)
    os.close(closed)
    look = "say(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)))"
    for stdin, stderr in ((None, None), (closed, closed)):
        child = guardian_without_cgroups.spawn(look, stdin=stdin, stderr=stderr)
        child.wait()
        assert b"/dev/null /dev/null\n" == child.out.data
    assert ("exit 0", 0, 0) == ended(
        guardian_without_cgroups.spawn("say('to nobody')", stdout=None).wait()
    )


def test_a_child_gets_no_descriptor_but_the_three(guardian: GuardianFixture) -> None:
    other = guardian.spawn("rest()")
    child = guardian.spawn("say(sorted(map(int, os.listdir('/proc/self/fd'))))")
    child.wait()
    assert b"[0, 1, 2, 3]\n" == child.out.data  # 3 is the listing itself
    other.kill()


RESERVED = 0b11 << 31
"""Signals 32 and 33 are the C library's own: some makes start us with them ignored, and nobody
can change that from above.
"""


def test_a_child_starts_with_default_signals_in_a_session_of_its_own(
    guardian: GuardianFixture,
) -> None:
    child = guardian.spawn("""
        for line in open("/proc/self/status"):
            if line.startswith(("SigBlk", "SigPnd")):
                say(line.strip())
        say("leads", os.getsid(0) == os.getpgid(0) == os.getpid())
    """)
    child.wait()
    assert [
        "SigPnd:\t0000000000000000",
        "SigBlk:\t0000000000000000",
        "leads True",
    ] == child.out.data.decode().splitlines()
    shell = guardian.start(["sh", "-c", "grep SigIgn /proc/self/status"])
    shell.wait()
    ignored = int(shell.out.data.split()[1], 16)
    assert 0 == ignored & ~RESERVED


# --- the guardian itself --------------------------------------------------------------------------


@contextmanager
def no_interpreter(_: Service) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        yield


def test_the_guardian_keeps_the_contract_of_a_service() -> None:
    with EventLoopThread() as loop:
        loop.loop()
        check_service(lambda: GuardianClient(loop, cgroups=False), broken=no_interpreter)


def test_a_guardian_that_cannot_be_attached_to_the_loop_is_not_left_running() -> None:
    with EventLoopThread() as loop, pytest.MonkeyPatch.context() as patch:

        async def refuse() -> None:
            raise OSError(errno.ENOSPC, "no more to watch")

        guardian = GuardianClient(loop, cgroups=False)
        patch.setattr(guardian, "_attach", refuse)
        with no_descriptor_leaks(), pytest.raises(OSError, match="no more to watch"):
            guardian.start()
        patch.undo()
        assert None is guardian.pid
        guardian.start()
        assert guardian.stop()


def test_a_guardian_that_is_started_again_hears_nothing_of_the_former_one() -> None:
    with running_guardian(cgroups=False) as guardian:
        guardian.guardian._inbox._data += b"\0\0\0"  # a message cut in half by the stop
        guardian.guardian.stop()
        guardian.guardian.start()
        assert ("exit 0", 0, 0) == ended(guardian.start(["true"]).wait())


def test_stopping_the_guardian_ends_every_child(guardian: GuardianFixture) -> None:
    children = [guardian.spawn("deaf(); orphan(rest); say('ready'); rest()") for _ in range(3)]
    for child in children:
        child.out.wait_for_text("ready")
    assert guardian.guardian.stop()
    assert [[], [], []] == [child.survivors() for child in children]


def test_nothing_can_be_spawned_before_the_start(guardian: GuardianFixture) -> None:
    guardian.guardian.stop()
    with (
        no_descriptor_leaks(),
        pytest.raises(GuardianLostError, match="the guardian is not running"),
    ):
        guardian.start(["true"])
    assert {} == guardian.guardian._children


def test_the_guardian_ignores_every_signal_that_can_be_ignored(guardian: GuardianFixture) -> None:
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGPIPE",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
    ):
        child = guardian.start(["true"])  # it has set itself up by now
        os.kill(guardian.pid, signal.Signals[name])
        assert "exit 0" == str(child.wait().cause)
    assert "exit 0" == str(guardian.start(["true"]).wait().cause)


def test_the_guardian_has_one_thread_and_runs_isolated_in_the_root_directory_and_a_session_of_its_own(  # noqa: E501 - one name
    guardian: GuardianFixture,
) -> None:
    guardian.start(["true"]).wait()
    me = Path(f"/proc/{guardian.pid}")
    assert ["-I", "-S"] == (me / "cmdline").read_text().split("\0")[1:3]
    assert "/" == str((me / "cwd").readlink())
    assert 1 == len(list((me / "task").iterdir()))
    assert guardian.pid == os.getsid(guardian.pid)


def test_the_guardian_imports_the_standard_library_and_itself_alone_and_no_asyncio() -> None:
    root = Path(program.__file__).parents[3]
    code = (
        f"import sys; sys.path.append({str(root)!r}); import longwatch.host.guardian.main; "
        f"print(*sys.modules)"
    )
    listing = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    modules = listing.stdout.split()
    ours = {name for name in modules if name.partition(".")[0] == "longwatch"}
    strangers = (
        {name.partition(".")[0] for name in modules}
        - {"longwatch", "__main__"}
        - set(sys.stdlib_module_names)
    )
    assert set() == strangers
    above = {"longwatch", "longwatch.host", "longwatch.lazy"}
    assert above >= {name for name in ours if not name.startswith("longwatch.host.guardian")}
    assert set() == {"asyncio", "subprocess", "threading", "pathlib", "click", "msgspec"} & set(
        modules
    )


def test_a_guardian_that_runs_as_a_script_loads_nothing_of_the_packages_around_it_and_no_large_module() -> (  # noqa: E501 - one name
    None
):
    """Its memory is counted: each of these would be a tenth of it or more."""
    script = Path(program.__file__).with_name("__main__.py")
    code = f"""
        import sys
        names = {{"__name__": "script", "__file__": {str(script)!r}}}
        exec(compile(open({str(script)!r}).read(), {str(script)!r}, "exec"), names)
        names["stub_packages"]()
        import longwatch.host.guardian.main
        print(*sys.modules)
    """
    command = [sys.executable, "-I", "-S", "-c", dedent(code)]
    modules = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=TIMEOUT
    ).stdout.split()
    assert "longwatch.host.guardian.main" in modules
    assert set() == {
        "longwatch.lazy",
        "typing",
        "dataclasses",
        "inspect",
        "threading",
        "subprocess",
        "pathlib",
    } & set(modules)


def test_a_guardian_can_be_started_where_the_standard_streams_are_closed() -> None:
    code = """
        import os, sys
        from longwatch.host.guardian_client import GuardianClient
        from longwatch.host.loop import EventLoopThread
        from longwatch.host.process import ProcessSpec

        said = os.dup(1)
        os.closerange(0, 3)
        with EventLoopThread() as loop, GuardianClient(loop) as guardian:
            spec = ProcessSpec(
                argv=["sh", "-c", "echo fine >&2"], env={"PATH": os.defpath}, stderr=said
            )
            child = loop.call(guardian.spawn(spec), timeout=20)
            ending = loop.call(child.wait(), timeout=20)
        os.write(said, str(ending.cause).encode())
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], check=False, capture_output=True, timeout=TIMEOUT
    )
    assert (0, b"fine\nexit 0") == (done.returncode, done.stdout)


def test_a_spec_needs_nothing_but_a_command_and_an_environment(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    async def story() -> ProcessEnd:
        child = await guardian_without_cgroups.guardian.spawn(
            ProcessSpec(argv=["/bin/true"], env={})
        )
        return await child.wait()

    assert "exit 0" == str(guardian_without_cgroups.loop.call(story(), timeout=TIMEOUT).cause)
