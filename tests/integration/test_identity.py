from __future__ import annotations

import grp
import os
import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardian_fixture import (
    GuardianFixture,
    SyncChild,
    is_gone,
    pids_with_token,
    proc_state,
    require_cgroups,
)
from longwatch.errors import SpawnError, UsageError
from longwatch.host.identity import Identity, login_environment, resolve_identity
from longwatch.host.process import ResourceLimits
from polling import eventually
from snippet import run_snippet

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run programs as another user"
)

FAMILY = """
    (setsid sh -c 'trap "" TERM; echo orphan; while :; do sleep 1; done' "$0" &)
    trap "" TERM
    echo leader
    while :; do sleep 1; done
"""
"""A leader and an orphan in a session of its own; both bear the token and hear no SIGTERM."""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody can look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(
    guardian: GuardianFixture, script: str, *, token: str = "-", **spec: Any
) -> SyncChild:
    """Run a shell script as nobody; its $0 is the token."""
    whole = {"cwd": "/", "identity": resolve_identity("nobody"), **spec}
    guardian.tokens += [token] if token != "-" else []
    return guardian.start(["sh", "-c", script, token], token=token, **whole)


def said(child: SyncChild) -> tuple[str, str]:
    cause = child.wait().cause
    return str(cause), child.out.data.decode()


# --- who that is ----------------------------------------------------------------------------------


def test_a_user_is_known_by_name_and_by_number() -> None:
    me = pwd.getpwuid(os.geteuid())
    assert (me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir) == tuple(
        getattr(resolve_identity(me.pw_name), field) for field in ("name", "uid", "gid", "home")
    )
    assert resolve_identity(me.pw_name) == resolve_identity(str(me.pw_uid))


def test_all_groups_of_a_user_belong_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 44, 7])
    me = pwd.getpwuid(os.geteuid())
    assert tuple(sorted((me.pw_gid, 44, 7))) == resolve_identity(me.pw_name).groups


@pytest.mark.parametrize("user", ["nobdy", "nobodyy"])
def test_a_user_nobody_knows_is_refused_with_the_nearest_name(user: str) -> None:
    with pytest.raises(UsageError, match=f"^there is no user '{user}'; did you mean nobody\\?$"):
        resolve_identity(user)


@pytest.mark.parametrize("user", ["", "4294967294", "99999999999999999999", "²", "a\0b", "-1"])
def test_what_is_no_user_is_refused(user: str) -> None:
    with pytest.raises(UsageError, match=r"^there is no user "):
        resolve_identity(user)


def test_another_user_is_refused_when_we_are_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid + 1)
    with pytest.raises(
        UsageError,
        match="only root can run programs as another user: start as root, or as 'nobody'",
    ):
        resolve_identity("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    assert nobody.pw_uid == resolve_identity("nobody").uid


def test_a_child_may_run_as_whoever_we_are(guardian_without_cgroups: GuardianFixture) -> None:
    child = guardian_without_cgroups.start(
        ["id", "-u"], identity=resolve_identity(str(os.geteuid()))
    )
    assert ("exit 0", f"{os.geteuid()}\n") == said(child)


# --- running as somebody else ---------------------------------------------------------------------


@needs_root
def test_a_child_runs_as_the_user_with_their_groups_alone(guardian: GuardianFixture) -> None:
    nobody = pwd.getpwnam("nobody")
    ids = f"{nobody.pw_uid} {nobody.pw_uid} {nobody.pw_gid} {nobody.pw_gid}"
    assert ("exit 0", f"{ids} {nobody.pw_gid}\n") == said(
        as_nobody(guardian, "echo $(id -ru; id -u; id -rg; id -g; id -G)")
    )


@needs_root
def test_every_group_of_the_identity_is_taken(guardian_without_cgroups: GuardianFixture) -> None:
    extra = max(entry.gr_gid for entry in grp.getgrall() if entry.gr_gid < 60_000)
    nobody = resolve_identity("nobody")
    identity = Identity(name="nobody", uid=nobody.uid, gid=nobody.gid, groups=(nobody.gid, extra))
    cause, groups = said(as_nobody(guardian_without_cgroups, "id -G", identity=identity))
    assert ("exit 0", {nobody.gid, extra}) == (cause, set(map(int, groups.split())))


@needs_root
def test_a_child_that_runs_as_nobody_cannot_read_what_is_roots(
    guardian_without_cgroups: GuardianFixture, open_folder: Path
) -> None:
    secret = open_folder / "secret"
    secret.write_text("told")
    secret.chmod(0o600)
    script = f"cat {secret} 2>/dev/null || echo refused"
    assert ("exit 0", "told\n") == said(guardian_without_cgroups.start(["sh", "-c", script]))
    assert ("exit 0", "refused\n") == said(as_nobody(guardian_without_cgroups, script))


@needs_root
def test_directory_and_command_are_judged_as_that_user(
    guardian_without_cgroups: GuardianFixture, open_folder: Path
) -> None:
    (open_folder / "closed").mkdir(mode=0o700)
    tool = open_folder / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    with pytest.raises(SpawnError, match=r"^cannot enter '.*closed': Permission denied$"):
        as_nobody(guardian_without_cgroups, "", cwd=str(open_folder / "closed"))
    with pytest.raises(SpawnError, match=r"^cannot execute '.*tool': Permission denied$"):
        guardian_without_cgroups.start([str(tool)], cwd="/", identity=resolve_identity("nobody"))


@needs_root
def test_their_home_and_name_are_offered_for_the_environment(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    env = {"PATH": os.defpath, **login_environment(resolve_identity("nobody"))}
    child = as_nobody(guardian_without_cgroups, 'echo "$HOME $USER $LOGNAME"', env=env)
    assert ("exit 0", f"{pwd.getpwnam('nobody').pw_dir} nobody nobody\n") == said(child)


@needs_root
def test_a_captured_output_can_be_opened_by_its_name_by_that_user(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    assert ("exit 0", "opened\n") == said(
        as_nobody(guardian_without_cgroups, "echo opened > /dev/stdout")
    )


@needs_root
def test_limits_that_take_privileges_are_set_before_the_user_is_changed(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    effective = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff")
    )
    if not int(effective.split()[1], 16) >> 23 & 1:
        pytest.skip("this root may not raise priorities")
    child = as_nobody(
        guardian_without_cgroups,
        "nice; umask",
        limits=ResourceLimits(nice=-3, memory=1 << 30),
        umask=0o077,
    )
    assert ("exit 0", "-3\n0077\n") == said(child)


# --- and is still ours ----------------------------------------------------------------------------


@needs_root
def test_the_whole_tree_of_another_user_is_killed(guardian: GuardianFixture) -> None:
    bystander = as_nobody(guardian, FAMILY, token=f"token-{secrets.token_hex(8)}")
    child = as_nobody(guardian, FAMILY, token=f"token-{secrets.token_hex(8)}")
    for each in (bystander, child):
        each.out.wait_for_text("orphan")
        each.out.wait_for_text("leader")
    assert 2 <= len(child.survivors())
    ending = child.kill()
    assert ("signal 9", 0) == (str(ending.cause), ending.survivors)
    assert [] == child.survivors()
    assert 2 <= len(bystander.survivors())


HOST = """
    import os, signal, sys
    from longwatch.host.guardian_client import GuardianClient
    from longwatch.host.identity import resolve_identity
    from longwatch.host.loop import EventLoopThread
    from longwatch.host.process import ProcessSpec

    token, cgroups, script = input(), input() == "cgroups", eval(input())
    loop = EventLoopThread()
    guardian = GuardianClient(loop, cgroups=cgroups)
    guardian.start()
    argv = ["sh", "-c", script, token]
    spec = ProcessSpec(
        argv=argv, env={"PATH": os.defpath}, cwd="/", stdout=1, identity=resolve_identity("nobody")
    )
    child = loop.call(guardian.spawn(spec), timeout=30)
    os.write(1, f"started {guardian.pid} {child.pid}\\n".encode())
    signal.pause()
"""


class HeldFamily:
    """A host in a process of its own that holds one family of nobody's."""

    def __init__(self, *, cgroups: bool) -> None:
        self.token = f"token-{secrets.token_hex(8)}"
        self._running = run_snippet(HOST)
        self.snippet = self._running.__enter__()
        for line in (self.token, "cgroups" if cgroups else "marks", repr(FAMILY)):
            self.snippet.send_line(line)
        lines = [self.snippet.read_line() for _ in range(3)]
        assert {"leader", "orphan"} < set(lines), lines
        self.guardian, self.leader = next(
            map(int, line.split()[1:]) for line in lines if line.startswith("started")
        )

    def close(self) -> None:
        for pid in pids_with_token(self.token):
            os.kill(pid, signal.SIGKILL)
        self._running.__exit__(None, None, None)


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def held_family(request: pytest.FixtureRequest) -> Iterator[HeldFamily]:
    if request.param:
        require_cgroups()
    it = HeldFamily(cgroups=request.param)
    yield it
    it.close()


@needs_root
def test_a_host_that_is_killed_leaves_nobody_of_another_user(held_family: HeldFamily) -> None:
    assert 2 <= len(pids_with_token(held_family.token))
    held_family.snippet.signal(signal.SIGKILL)
    assert eventually(lambda: is_gone(held_family.guardian))
    assert [] == pids_with_token(held_family.token)


@needs_root
def test_a_leader_of_another_user_dies_with_its_guardian_though_the_host_does_nothing(
    held_family: HeldFamily,
) -> None:
    """The kernel forgets the death signal when the user changes."""
    held_family.snippet.signal(signal.SIGSTOP)
    assert eventually(lambda: proc_state(held_family.snippet._child.pid) == "T")
    os.kill(held_family.guardian, signal.SIGKILL)
    assert eventually(lambda: is_gone(held_family.leader), timeout=5.0)
