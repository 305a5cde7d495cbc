from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host import incarnation
from longwatch.host.incarnation import Incarnation, boot_id
from polling import eventually

HEX = st.text("0123456789abcdef", min_size=1, max_size=32)
WHOLE = st.integers(min_value=0, max_value=2**63)

SLEEPER = [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[bytes], Incarnation]]:
    """A process that lives, and how it would call itself."""
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        look = incarnation._read_proc_stat(child.pid)
        assert look is not None
        yield child, replace(Incarnation.current(), pid=child.pid, start=look.start)
        child.kill()


@given(st.builds(Incarnation, HEX, HEX, WHOLE, WHOLE, WHOLE))
def test_its_text_can_be_read_back(one: Incarnation) -> None:
    assert one == Incarnation.parse(str(one))


@pytest.mark.parametrize("text", ["", "a.b.c", "a.b.1.2.3.4", "a.b.x.2.3", "a.b.1.2.y"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Incarnation.parse(text)


def test_each_start_has_an_id_of_its_own() -> None:
    assert Incarnation.current() != Incarnation.current()


def test_it_names_this_boot_and_this_process() -> None:
    mine = Incarnation.current()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "") == mine.boot
    assert (os.getpid(), Path("/proc/self/ns/pid").stat().st_ino) == (mine.pid, mine.namespace)


def test_this_process_is_alive() -> None:
    assert not Incarnation.current().is_dead()


def test_another_process_that_lives_is_alive(
    other: tuple[subprocess.Popen[bytes], Incarnation],
) -> None:
    assert not other[1].is_dead()


def test_a_process_that_is_gone_is_dead(other: tuple[subprocess.Popen[bytes], Incarnation]) -> None:
    child, one = other
    child.kill()
    child.wait()
    assert one.is_dead()


def test_a_zombie_is_dead_though_nobody_has_reaped_it(
    other: tuple[subprocess.Popen[bytes], Incarnation],
) -> None:
    child, one = other
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert one.is_dead()


def test_a_process_whose_main_thread_alone_has_ended_is_alive() -> None:
    code = """
import ctypes, threading, sys
threading.Thread(target=lambda: (print(flush=True), sys.stdin.read())).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert eventually(lambda: ") Z " in Path(f"/proc/{child.pid}/stat").read_text())
        look = incarnation._read_proc_stat(child.pid)
        assert look is not None
        assert not replace(Incarnation.current(), pid=child.pid, start=look.start).is_dead()
        child.kill()


def test_the_same_pid_with_another_start_time_is_another_process() -> None:
    mine = Incarnation.current()
    assert replace(mine, start=mine.start + 1).is_dead()


def test_one_that_never_knew_its_start_time_is_not_judged_by_it() -> None:
    assert not replace(Incarnation.current(), start=0).is_dead()


def test_a_process_that_may_not_be_signalled_counts_as_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    mine = Incarnation.current()
    monkeypatch.setattr(os, "kill", refuse)
    assert not replace(mine, start=mine.start + 1).is_dead()


def test_where_proc_does_not_tell_it_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Incarnation.current()
    monkeypatch.setattr(incarnation, "_read_proc_stat", lambda _pid: None)
    assert not replace(mine, start=mine.start + 1).is_dead()


@pytest.mark.parametrize(
    "elsewhere",
    [{"boot": "another"}, {"namespace": 1}, {"namespace": 0}],
    ids=["boot", "namespace", "unknown namespace"],
)
def test_from_anywhere_else_it_counts_as_alive(
    other: tuple[subprocess.Popen[bytes], Incarnation], elsewhere: dict[str, str | int]
) -> None:
    child, one = other
    child.kill()
    child.wait()
    assert not replace(one, **elsewhere).is_dead()  # type: ignore[arg-type]
    assert not replace(one, **elsewhere).is_visible  # type: ignore[arg-type]


def test_one_of_another_boot_is_known_as_such() -> None:
    mine = Incarnation.current()
    assert not mine.is_from_another_boot
    assert replace(mine, boot="another").is_from_another_boot


class FakeLibc:
    """The C library of macOS: `sysctlbyname` copies a value into the caller's buffer."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self._values = values

    def sysctlbyname(
        self, name: bytes, buffer: Any, size: Any, new: object, new_size: ctypes.c_size_t
    ) -> int:
        value = self._values.get(name)
        if value is None or new is not None or new_size.value:
            return -1
        if len(value) + 1 > ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0]:
            return -1
        buffer.value = value
        return 0


@pytest.mark.parametrize(
    ("libc", "expected"),
    [
        (
            FakeLibc({b"kern.bootsessionuuid": b"3A1C5E0E-6C1D-4A53-9B7B-7D8B1C0A55F2"}),
            "3a1c5e0e6c1d4a539b7b7d8b1c0a55f2",
        ),
        (FakeLibc({}), ""),
        (FakeLibc({b"kern.bootsessionuuid": b"x" * 4096}), ""),
        (object(), ""),
    ],
    ids=["known", "unknown", "too long", "another libc"],
)
def test_on_macos_the_kernel_names_the_boot(
    monkeypatch: pytest.MonkeyPatch, libc: object, expected: str
) -> None:
    """The boot session of the kernel is the boot id; without one there is none, as on any system
    that does not tell.
    """
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    assert expected == boot_id.__wrapped__()


def test_a_lease_of_the_boot_before_does_not_survive_on_macos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def boot(session: bytes) -> str:
        libc = FakeLibc({b"kern.bootsessionuuid": session})
        monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
        return boot_id.__wrapped__()

    monkeypatch.setattr(sys, "platform", "darwin")
    before, after = boot(b"AAAA-BBBB"), boot(b"CCCC-DDDD")
    owner = replace(Incarnation.current(), boot=before)
    monkeypatch.setattr(incarnation, "boot_id", lambda: after)
    assert owner.is_from_another_boot


def test_the_boot_has_no_dots() -> None:
    assert boot_id()
    assert "." not in boot_id()
