"""Who may see the status page, and who may act on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longwatch.page.access import (
    AccessDecision,
    AccessPolicy,
    AccessRequest,
    host_name,
    make_policy,
)

TOKEN = "a-token-of-some-length"
POLICY = make_policy(TOKEN, bind="192.0.2.7", allowed_hosts=["status.example.org"])
SIGNED_IN = AccessRequest(host="127.0.0.1:8087", cookie=POLICY.cookie_value)
POST = replace(
    SIGNED_IN,
    method="POST",
    path="/programs/web/stop",
    action_token=POLICY.action_token("/programs/web/stop"),
)
LINK = AccessRequest(host="127.0.0.1:8087", link_token=TOKEN)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8087",
        "localhost:8087",
        "LocalHost",
        "localhost.",
        "[::1]:8087",
        "192.0.2.7:8087",
        "status.example.org",
        "Status.Example.Org:443",
    ],
)
def test_the_names_of_this_page_are_answered(host: str) -> None:
    assert AccessDecision.ALLOWED is POLICY.decide(replace(SIGNED_IN, host=host))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example.org",
        "evil.example.org:8087",
        "127.0.0.1.evil.example.org",
        "status.example.org.evil.example.org",
        "user@localhost",
        "localhost/path",
        "localhost:port",
        "127.0.0.2",
        "[::1",
    ],
)
def test_every_other_name_is_refused_whatever_else_the_request_has(host: str) -> None:
    for request in (SIGNED_IN, POST, LINK):
        assert AccessDecision.WRONG_HOST is POLICY.decide(replace(request, host=host))


def test_a_page_on_every_interface_goes_by_no_name_but_those_that_are_allowed() -> None:
    for bind in ("0.0.0.0", "::"):
        policy = make_policy(TOKEN, bind=bind)

        assert AccessDecision.WRONG_HOST is policy.decide(replace(LINK, host=bind))
        assert AccessDecision.SIGN_IN is policy.decide(LINK)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (AccessDecision.NO_TOKEN, {"cookie": ""}),
        (AccessDecision.WRONG_TOKEN, {"cookie": "something"}),
        (AccessDecision.WRONG_TOKEN, {"cookie": TOKEN}),
        (AccessDecision.WRONG_TOKEN, {"cookie": "é"}),
        (AccessDecision.ALLOWED, {}),
        (AccessDecision.ALLOWED, {"cookie": "", "authorization": f"Bearer {TOKEN}"}),
        (AccessDecision.ALLOWED, {"cookie": "", "authorization": f"bearer  {TOKEN} "}),
        (AccessDecision.WRONG_TOKEN, {"authorization": "Bearer something"}),
        (AccessDecision.NO_TOKEN, {"cookie": "", "authorization": "Basic eDp5"}),
        (AccessDecision.SIGN_IN, {"cookie": "", "link_token": TOKEN}),
        (AccessDecision.WRONG_TOKEN, {"link_token": TOKEN[:-1]}),
        (AccessDecision.WRONG_TOKEN, {"link_token": ""}),
        (AccessDecision.ALLOWED, {"cookie": "", "path": "/static/page.css"}),
        (AccessDecision.NO_TOKEN, {"cookie": "", "path": "/static", "method": "POST"}),
    ],
)
def test_the_token_comes_as_a_cookie_a_bearer_token_or_a_link(
    expected: AccessDecision, changes: dict[str, str]
) -> None:
    assert expected is POLICY.decide(replace(SIGNED_IN, **changes))


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (AccessDecision.ALLOWED, {"fetch_site": "same-origin"}),
        (AccessDecision.ALLOWED, {"fetch_site": "none"}),
        (AccessDecision.OTHER_SITE, {"fetch_site": "cross-site"}),
        (AccessDecision.OTHER_SITE, {"fetch_site": "same-site"}),
        (AccessDecision.ALLOWED, {"origin": "http://127.0.0.1:8087"}),
        (AccessDecision.OTHER_SITE, {"origin": "http://127.0.0.1:9000"}),
        (AccessDecision.OTHER_SITE, {"origin": "https://evil.example.org"}),
        (AccessDecision.ALLOWED, {"origin": "https://status.example.org"}),
        (AccessDecision.OTHER_SITE, {"origin": "null"}),
        (AccessDecision.ALLOWED, {"origin": "null", "fetch_site": "same-origin"}),
        (AccessDecision.OTHER_SITE, {"origin": "null", "fetch_site": "cross-site"}),
    ],
)
def test_no_other_site_makes_a_browser_ask_or_act(
    expected: AccessDecision, changes: dict[str, str]
) -> None:
    for request in (SIGNED_IN, POST):
        assert expected is POLICY.decide(replace(request, **changes))


def test_a_link_with_the_token_may_be_followed_from_another_site_and_nothing_else() -> None:
    followed = replace(LINK, fetch_site="cross-site", fetch_mode="navigate", fetch_dest="document")

    assert AccessDecision.SIGN_IN is POLICY.decide(followed)
    for change in (
        {"fetch_mode": "no-cors"},
        {"fetch_dest": "iframe"},
        {"method": "POST"},
        {"link_token": None},
        {"origin": "https://evil.example.org"},
    ):
        assert AccessDecision.OTHER_SITE is POLICY.decide(replace(followed, **change))


def test_an_action_needs_the_token_of_its_own_path() -> None:
    other = POLICY.action_token("/programs/web/restart")

    assert AccessDecision.ALLOWED is POLICY.decide(POST)
    for wrong in ("", other, POLICY.cookie_value, TOKEN):
        assert AccessDecision.WRONG_ACTION_TOKEN is POLICY.decide(replace(POST, action_token=wrong))


def test_an_action_token_does_not_replace_the_token_itself() -> None:
    assert AccessDecision.NO_TOKEN is POLICY.decide(replace(POST, cookie=""))


def test_the_derived_secrets_differ_by_token_and_never_contain_it() -> None:
    other = AccessPolicy(TOKEN + "x")
    derived = {POLICY.cookie_value, POLICY.action_token("/a"), POLICY.action_token("/b")}

    assert 3 == len(derived)
    assert derived.isdisjoint({other.cookie_value, other.action_token("/a")})
    assert not any(TOKEN in each for each in derived)
    assert TOKEN not in repr(POLICY)


@pytest.mark.parametrize(
    ("expected", "host"),
    [("a.example", "A.Example:80"), ("::1", "[::1]:8087"), ("", "a b:c"), ("", "x?y"), ("", "x#y")],
)
def test_host_names_are_compared_without_port_and_case(expected: str, host: str) -> None:
    assert expected == host_name(host)


def test_an_origin_that_is_no_address_is_another_site() -> None:
    assert POLICY.decide(replace(SIGNED_IN, origin="http://[")) is AccessDecision.OTHER_SITE
