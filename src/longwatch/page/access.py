"""Decides which requests may read the page, and which may act. Pure: no server and no files.

The decisions, in their order:

    host            the Host header names this page, so that no foreign name leads here (421)
    site            the request comes from the page itself, or from no page (403)
    token           a cookie, a bearer token, or the link with the token (401)
    action token    for POST: proof that the form came from this page (403)

Files of `/static` hold no secrets. They need the host and the site, and no token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import urlsplit

ACTION_FIELD = "action_token"
STATIC_PREFIX = "/static/"
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_READING_METHODS = frozenset({"GET", "HEAD"})


class AccessDecision(Enum):
    """What becomes of a request."""

    ALLOWED = auto()
    SIGN_IN = auto()
    """Set the cookie, and lead to the same path without the token."""
    WRONG_HOST = auto()
    OTHER_SITE = auto()
    NO_TOKEN = auto()
    WRONG_TOKEN = auto()
    WRONG_ACTION_TOKEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """The parts of a request that access depends on. A header that is missing is empty."""

    method: str = "GET"
    path: str = "/"
    host: str = ""
    origin: str = ""
    fetch_site: str = ""
    fetch_mode: str = ""
    fetch_dest: str = ""
    authorization: str = ""
    cookie: str = ""
    """The value of our cookie."""
    link_token: str | None = None
    """The token in the query; None without one."""
    action_token: str = ""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The rules of access. `hosts`: names of this page beside those of the loopback interface."""

    token: str = field(repr=False)
    hosts: frozenset[str] = frozenset()

    @property
    def cookie_value(self) -> str:
        """The value of the cookie. The token cannot be computed from it."""
        return self._proof("cookie")

    def action_token(self, path: str) -> str:
        """The token of the forms that act on this path."""
        return self._proof(f"action {path}")

    def decide(self, request: AccessRequest) -> AccessDecision:
        if not self._is_known_host(request.host):
            return AccessDecision.WRONG_HOST
        if self._is_from_other_site(request) and not self._is_followed_link(request):
            return AccessDecision.OTHER_SITE
        if request.path.startswith(STATIC_PREFIX) and request.method in _READING_METHODS:
            return AccessDecision.ALLOWED
        return self._decide_token(request)

    def _decide_token(self, request: AccessRequest) -> AccessDecision:
        if request.link_token is not None and request.method in _READING_METHODS:
            fits = _is_same(request.link_token, self.token)
            return AccessDecision.SIGN_IN if fits else AccessDecision.WRONG_TOKEN
        scheme, _, bearer = request.authorization.partition(" ")
        if scheme.lower() == "bearer":
            if not _is_same(bearer.strip(), self.token):
                return AccessDecision.WRONG_TOKEN
        elif not request.cookie:
            return AccessDecision.NO_TOKEN
        elif not _is_same(request.cookie, self.cookie_value):
            return AccessDecision.WRONG_TOKEN
        if request.method == "POST" and not _is_same(
            request.action_token, self.action_token(request.path)
        ):
            return AccessDecision.WRONG_ACTION_TOKEN
        return AccessDecision.ALLOWED

    def _is_known_host(self, host: str) -> bool:
        name = host_name(host)
        return bool(name) and (name in _LOOPBACK_HOSTS or name in self.hosts)

    def _is_from_other_site(self, request: AccessRequest) -> bool:
        if request.fetch_site in {"cross-site", "same-site"}:
            return True
        if not request.origin:
            return False
        if request.origin == "null":  # a browser sends it with `Referrer-Policy: no-referrer`
            return request.fetch_site != "same-origin"
        try:
            origin = urlsplit(request.origin).netloc.lower()
        except ValueError:  # no browser sends it
            return True
        return origin != request.host.lower() and host_name(origin) not in self.hosts

    def _is_followed_link(self, request: AccessRequest) -> bool:
        """Whether a person followed a link with the token, for example in a chat or a mail."""
        return (
            request.method == "GET"
            and request.fetch_mode == "navigate"
            and request.fetch_dest in {"document", ""}
            and request.link_token is not None
            and not request.origin
        )

    def _proof(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def make_policy(token: str, *, bind: str, allowed_hosts: Collection[str] = ()) -> AccessPolicy:
    """The policy of a page that listens on the address `bind`."""
    names = {host_name(each) or each.lower() for each in allowed_hosts}
    return AccessPolicy(token, frozenset(names | ({bind.lower()} - _ANY_ADDRESS)))


def host_name(host: str) -> str:
    """The name in a Host header: lower case, without the port; empty if it is not valid."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises for a port that is no number
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return ""
    return (parts.hostname or "").rstrip(".")


def access_request(method: str, path: str, headers: Mapping[str, str]) -> AccessRequest:
    """The request with the headers that access depends on."""
    return AccessRequest(
        method=method,
        path=path,
        host=headers.get("Host", ""),
        origin=headers.get("Origin", ""),
        fetch_site=headers.get("Sec-Fetch-Site", ""),
        fetch_mode=headers.get("Sec-Fetch-Mode", ""),
        fetch_dest=headers.get("Sec-Fetch-Dest", ""),
        authorization=headers.get("Authorization", ""),
    )


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
