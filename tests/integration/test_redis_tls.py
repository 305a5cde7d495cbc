"""Mailboxes over TLS, with an authority and certificates of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from redis._parsers import _HiredisParser, _RESP2Parser

from longwatch.core.clock import Wakeup
from longwatch.errors import StoreUnreachableError
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.listener import RedisListener
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.redis.transport import RedisNode
from polling import eventually
from redis_server import FSYNC_EVERYSEC, DebianRedisServer, RedisServer
from requires import require_tool


@dataclass(frozen=True)
class TlsServer:
    """A server that takes TLS only, from clients with a certificate of its authority."""

    server: RedisServer
    directory: Path

    def url(self, authority: str = "ca", certificate: str | None = "client") -> str:
        files = f"ssl_ca_certs={self.directory}/{authority}.crt"
        if certificate is not None:
            files += f"&ssl_certfile={self.directory}/{certificate}.crt"
            files += f"&ssl_keyfile={self.directory}/{certificate}.key"
        return f"rediss://127.0.0.1:{self.server.port}/0?{files}"


def _answers(url: str) -> bool:
    node = RedisNode(url)
    try:
        return bool(node.execute("PING") == b"PONG")
    except StoreUnreachableError:
        return False
    finally:
        node.close()


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    require_tool("redis-server")
    require_tool("openssl")
    with TemporaryDirectory(prefix="longwatch-tls-") as name:
        directory = Path(name)
        _make_certificates(directory)
        server = DebianRedisServer(
            directory,
            {
                **FSYNC_EVERYSEC,
                "tls-cert-file": str(directory / "server.crt"),
                "tls-key-file": str(directory / "server.key"),
                "tls-ca-cert-file": str(directory / "ca.crt"),
            },
        )
        server.settings |= {"tls-port": str(server.port), "port": "0"}
        found = TlsServer(server, directory)
        try:
            server.launch()
            assert eventually(lambda: _answers(found.url()))
            yield found
        finally:
            server.kill()


def test_messages_go_over_tls_and_a_listener_is_woken(tls: TlsServer) -> None:
    store, wakeup = RedisStore(tls.url()), Wakeup()
    store.resources().listener.wake_interval = 1000.0
    backend = store.backend("work")
    large = b"x" * 3_000_000
    backend.listen(wakeup)
    assert wakeup.block(20.0), "it is subscribed"
    for body in (b"first", large):
        wakeup.clear()
        backend.put([NewMessage(id=new_id(), body=body)])
        if body == b"first":
            assert wakeup.block(20.0)
    assert [b"first", large] == [found.body for found in backend.peek(limit=5)]
    assert 2 == backend.purge()
    store.close()


@pytest.mark.parametrize("parser", [_HiredisParser, _RESP2Parser])
def test_each_parser_of_the_client_reads_and_listens(tls: TlsServer, parser: type) -> None:
    node = RedisNode(tls.url(), parser_class=parser)
    script = b"return {1, false, {'a', ''}, string.rep('x', 200000)}"
    for _ in range(3):
        assert [1, None, [b"a", b""], b"x" * 200_000] == node.execute(b"EVAL", script, 0)
    assert 1 == len(node._connections)
    wakeup, listener = Wakeup(), RedisListener(node.connect, wake_interval=1000.0)
    listener.listen("channel", wakeup)
    for _ in range(3):
        assert wakeup.block(20.0)
        wakeup.clear()
        node.execute("PUBLISH", "channel", "")
    assert wakeup.block(20.0)
    listener.close()
    node.close()


@pytest.mark.parametrize(
    ("authority", "certificate"), [("stranger", "client"), ("ca", None), ("ca", "stranger")]
)
def test_a_certificate_of_another_authority_is_refused_and_nothing_is_written(
    tls: TlsServer, authority: str, certificate: str | None
) -> None:
    store = RedisStore(tls.url(authority, certificate))
    with pytest.raises(StoreUnreachableError):
        store.backend("work").put([NewMessage(id=new_id(), body=b"")])
    store.close()


def _make_certificates(directory: Path) -> None:
    """An authority, a certificate of it for the server and the client, and a stranger's."""
    for name in ("ca", "stranger"):
        _openssl(
            directory, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.crt",
        )  # fmt: skip
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        _openssl(
            directory, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        _openssl(
            directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.crt",
        )  # fmt: skip


def _openssl(directory: Path, *words: str) -> None:
    subprocess.run(
        ["openssl", *words],
        cwd=directory,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
