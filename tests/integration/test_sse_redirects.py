"""Redirects and TLS of an SSE source: what is followed, and what another server gets to see."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from event_source_rig import (
    FaultyServer,
    MemoryIntake,
    Request,
    Script,
    answers,
    running,
    sends,
    stalls,
)
from longwatch.core.events.runner import (
    EventSourceEnded,
    SseConnectionEstablished,
    SseConnectionFailed,
)
from longwatch.runner.policy import SourceSpec

SECRETS = {"Authorization": "Bearer secret", "Cookie": "a=secret", "X-Key": "secret"}


def redirects(target: Callable[[], str], status: int = 307) -> Script:
    """A redirect to a place that is known only when the server runs."""

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        await answers(status, f"Location: {target()}")(request, writer)

    return script


async def first_failure(spec: SourceSpec) -> SseConnectionFailed:
    async with running(spec) as rig:
        return await rig.first(SseConnectionFailed)


def secrets_of(request: Request) -> list[str]:
    return [name for name, value in request.headers.items() if "secret" in value]


# --- redirects ---


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_three_redirects_inside_a_server_are_followed_with_credentials(status: int) -> None:
    async def scenario() -> None:
        hops = [redirects(lambda n=n: f"/hop{n}?x=1", status) for n in range(3)]  # type: ignore[misc]
        async with FaultyServer(*hops, sends(then=stalls)) as server:
            async with running(replace(server.spec, headers=SECRETS)) as rig:
                await rig.first(SseConnectionEstablished)
            paths = ["/events", "/hop0?x=1", "/hop1?x=1", "/hop2?x=1"]
            assert paths == [request.path for request in server.requests]
            assert all(3 == len(secrets_of(request)) for request in server.requests)

    asyncio.run(scenario())


def test_a_fourth_redirect_and_a_loop_are_refused() -> None:
    async def scenario() -> None:
        scripts = *[redirects(lambda: "/events")] * 4, answers(204)
        async with FaultyServer(*scripts) as server, running(server.spec) as rig:
            await rig.first(EventSourceEnded)
            assert 5 == len(server.requests)
            (failed,) = rig.of(SseConnectionFailed)
        assert ("http_status", 60.0) == (failed.reason, failed.retry_in)
        assert failed.error.startswith("more than 3 redirects")

    asyncio.run(scenario())


def test_another_server_gets_no_credentials_and_neither_does_what_comes_after_it() -> None:
    """Another port is another server. A redirect back brings the credentials back to no one."""

    async def scenario() -> None:
        async with FaultyServer(sends(then=stalls)) as last:
            back = redirects(lambda: home.url)
            async with FaultyServer(back) as foreign:
                scripts = redirects(lambda: foreign.url), redirects(lambda: last.url)
                async with FaultyServer(*scripts) as home:
                    spec = replace(home.spec, headers=SECRETS)
                    spec = replace(spec, url=spec.url.replace("//", "//me:secret@"))
                    spec = replace(spec, headers={"Cookie": "a=secret", "X-Key": "secret"})
                    async with running(spec) as rig:
                        await rig.first(SseConnectionEstablished)
                    first, second = home.requests
                    assert ["cookie", "x-key"] == sorted(secrets_of(first))
                    assert "authorization" in first.headers
                    for request in (second, *foreign.requests, *last.requests):
                        assert [] == secrets_of(request)
                        assert "authorization" not in request.headers

    asyncio.run(scenario())


def test_the_last_event_id_follows_a_redirect() -> None:
    async def scenario() -> None:
        async with FaultyServer(sends(b"id: 4\ndata: x\n\n", then=stalls)) as last:
            script, intake = redirects(lambda: last.url), MemoryIntake(stored="3")
            async with FaultyServer(script) as home, running(home.spec, intake=intake) as rig:
                await rig.until(lambda: "4" == intake.stored)
            assert "3" == last.requests[0].headers["last-event-id"]

    asyncio.run(scenario())


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://[bad/"])
def test_a_redirect_to_what_is_not_http_is_refused(location: str) -> None:
    async def scenario() -> None:
        async with FaultyServer(redirects(lambda: location)) as server:
            failed = await first_failure(server.spec)
        assert ("http_status", 60.0) == (failed.reason, failed.retry_in)

    asyncio.run(scenario())


# --- TLS ---


@dataclass
class Identity:
    """A certificate of its own authority, for 127.0.0.1, and its key."""

    cert: Path
    key: Path

    def server_context(self, *, ask_for: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        if ask_for is not None:
            context.load_verify_locations(ask_for)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


@pytest.fixture
def identity(tmp_path: Path) -> Callable[[str], Identity]:
    def make(name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        cert = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        made = Identity(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    return make


def test_a_certificate_of_an_unknown_authority_is_refused(
    identity: Callable[[str], Identity],
) -> None:
    async def scenario() -> None:
        tls = identity("server").server_context()
        async with FaultyServer(sends(then=stalls), tls=tls) as server:
            assert "tls" == (await first_failure(server.spec)).reason
            assert [] == server.requests

    asyncio.run(scenario())


def test_plain_http_behind_https_is_a_tls_failure() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            spec = SourceSpec(name="east", url=f"https://127.0.0.1:{port}/")
            assert "tls" == (await first_failure(spec)).reason

    asyncio.run(scenario())


def test_a_missing_authority_file_is_a_tls_failure_that_names_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = SourceSpec(name="east", url="https://127.0.0.1:1/", ca_file=tmp_path / "none.pem")
        failed = await first_failure(spec)
        assert "tls" == failed.reason
        assert f"cannot use ca_file {spec.ca_file}: no such file or directory" == failed.error

    asyncio.run(scenario())


def test_the_configured_authority_is_trusted_and_https_never_leads_to_http(
    identity: Callable[[str], Identity],
) -> None:
    async def scenario() -> None:
        made = identity("server")
        async with FaultyServer(sends(then=stalls)) as plain:
            scripts = sends(b"data: 1\n\n", then=_end), redirects(lambda: plain.url)
            async with FaultyServer(*scripts, tls=made.server_context()) as server:
                async with running(replace(server.spec, ca_file=made.cert)) as rig:
                    await rig.first(SseConnectionEstablished)
                    failed = await rig.first(SseConnectionFailed, 2)
                assert ["1"] == rig.intake.data
                assert ("http_status", 60.0) == (failed.reason, failed.retry_in)
                assert "from https to http" in failed.error
            assert [] == plain.requests

    asyncio.run(scenario())


async def _end(_: asyncio.StreamWriter) -> None: ...


def test_our_certificate_is_shown_to_our_server_alone(
    identity: Callable[[str], Identity],
) -> None:
    shown: list[bool] = []

    def noting(then: Script) -> Script:
        async def script(request: Request, writer: asyncio.StreamWriter) -> None:
            shown.append(bool(writer.get_extra_info("peercert")))
            await then(request, writer)

        return script

    async def scenario() -> None:
        made, ours = identity("server"), identity("client")
        tls = made.server_context(ask_for=ours.cert)
        async with FaultyServer(noting(sends(then=stalls)), tls=tls) as foreign:
            script = noting(redirects(lambda: foreign.url))
            async with FaultyServer(script, tls=tls) as home:
                spec = replace(home.spec, ca_file=made.cert, cert_file=ours.cert, key_file=ours.key)
                async with running(spec) as rig:
                    await rig.first(SseConnectionEstablished)
        assert [True, False] == shown

    asyncio.run(scenario())
