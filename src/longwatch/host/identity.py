"""The user that a child runs as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user of this machine; `groups` are all its groups, `gid` included. See
    `resolve_identity`.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def resolve_identity(user: str) -> Identity:
    """Look up a user by name or number.

    Raises UsageError for an unknown user, and for another user if this process is not root.
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
    """Return the variables that a login of this user sets, as defaults for a child."""
    return {"HOME": identity.home, "USER": identity.name, "LOGNAME": identity.name}


def _passwd_entry(user: str) -> pwd.struct_passwd:
    try:
        return (
            pwd.getpwuid(int(user)) if user.isascii() and user.isdecimal() else pwd.getpwnam(user)
        )
    except (KeyError, ValueError, OverflowError):
        known = (entry.pw_name for entry in pwd.getpwall())
        hint = did_you_mean(user, known, default="name a user of this machine, or create it")
        raise UsageError(f"there is no user {user!r}; {hint}") from None
