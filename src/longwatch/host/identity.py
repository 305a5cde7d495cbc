"""As whom a child runs: a user of this machine, with everything that takes to become them."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user: `groups` are all they belong to, `gid` included. Made by `resolve_identity`."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def resolve_identity(user: str) -> Identity:
    """Who that is, by name or number; UsageError for one nobody knows, and for somebody else
    when we are not root.
    """
    entry = _passwd_entry(user)
    if os.geteuid() not in (0, entry.pw_uid):
        raise UsageError(
            f"only root can run programs as another user: start as root, or as {entry.pw_name!r}"
        )
    return Identity(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid))),
        home=entry.pw_dir,
    )


def login_environment(identity: Identity) -> dict[str, str]:
    """What a login would set for them, for a child that is not told otherwise."""
    return {"HOME": identity.home, "USER": identity.name, "LOGNAME": identity.name}


def _passwd_entry(user: str) -> pwd.struct_passwd:
    try:
        return (
            pwd.getpwuid(int(user)) if user.isascii() and user.isdecimal() else pwd.getpwnam(user)
        )
    except (KeyError, ValueError, OverflowError):
        known = (entry.pw_name for entry in pwd.getpwall())
        hint = did_you_mean(user, known, default="name one of this machine, or make it")
        raise UsageError(f"there is no user {user!r}; {hint}") from None
