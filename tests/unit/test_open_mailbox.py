from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from longwatch.errors import InvalidParameterError, MailboxFullError, UnsupportedError, UsageError
from longwatch.mailbox import MailboxLimits, open_mailbox, open_store
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.url import mailbox_names
from longwatch.store.sqlite.database import SqliteDatabase


def test_memory_is_shared_by_its_url() -> None:
    open_mailbox("memory://shared-by-url", "jobs").send("here")
    [message] = open_mailbox("memory://shared-by-url", "jobs").receive()
    assert "here" == message.body
    assert [] == open_mailbox("memory://another", "jobs").receive()
    assert [] == open_mailbox("memory://shared-by-url", "others").receive()


def test_memory_without_a_name_is_one_store() -> None:
    assert open_store("memory://") is open_store("memory://")
    assert open_store("memory://") is not open_store("memory://named")


def test_memory_has_no_transactions() -> None:
    with pytest.raises(UnsupportedError, match="sqlite:///"):
        MemoryStore().transact(lambda _: None)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative.db", Path("relative.db")),
        ("sqlite:////absolute/path.db", Path("/absolute/path.db")),
        ("sqlite:///with%20space.db", Path("with space.db")),
        ("sqlite:///a%23b%3Fc.db", Path("a#b?c.db")),
        ("sqlite:///a\nb.db", Path("a\nb.db")),
        ("SQLite:///gr%C3%BCn.db", Path("grün.db")),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: Path) -> None:
    assert path.absolute() == open_store(url).path


def test_opening_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    open_mailbox(f"sqlite:///{path}", "jobs")
    assert not path.exists()


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("sqlit:///a.db", r"did you mean sqlite://\?"),
        ("mem://", "memory://"),
        (
            "kafka://host",
            "use one of memory://, postgresql://, redis://, redis\\+sentinel://, redis",
        ),
        ("", "use one of"),
        ("a.db", r"did you mean sqlite:///a\.db\?"),
        ("/var/lib/a.db", r"did you mean sqlite:////var/lib/a\.db\?"),
        ("sqlite://", "sqlite:///relative.db"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite://host/a.db", "sqlite:///relative.db"),
        ("sqlite://[x", "sqlite:///relative.db"),
        ("sqlite:a.db", r"did you mean sqlite://\?"),
        ("sqlite:/a.db", r"did you mean sqlite://\?"),
        ("redis:host", r"did you mean redis://\?"),
        ("sqlite:///a#b.db", "contains #.*write %23"),
        ("sqlite:///a.db?mode=ro", r"contains \?.*write %3F"),
        ("sqlite:///a%00b", "zero byte"),
        ("sqlite:///a%ff", "not UTF-8"),
        ("sqlite:///\ud800", "not UTF-8"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_cure(url: str, cure: str) -> None:
    with pytest.raises(UsageError, match=cure):
        open_mailbox(url, "jobs")


@pytest.mark.parametrize("name", ["", "a b", "jobs.dead"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="a mailbox name"):
        open_mailbox("memory://", name)


def test_bodies_are_decoded_to_the_type_it_was_opened_with() -> None:
    store = MemoryStore()
    open_mailbox(store, "numbers").send("no number")
    numbers = open_mailbox(store, "numbers", int)
    numbers.send(7)
    assert [7] == [message.body for message in numbers.receive(max_messages=10)]
    assert ["undecodable"] == [letter.reason for letter in numbers.dead_letters]


def test_the_largest_body_can_be_set() -> None:
    mailbox = open_mailbox(MemoryStore(), "jobs", max_body_bytes=10)
    with pytest.raises(InvalidParameterError, match="larger than 10"):
        mailbox.send("x" * 9)


def test_a_reply_is_not_held_to_the_limits_of_the_mailbox_it_comes_from() -> None:
    store = MemoryStore()
    requests = open_mailbox(store, "requests", limits=MailboxLimits(max_size=1))
    answers = open_mailbox(store, "answers")
    answers.send_many(["one", "two"])
    requests.send("question", reply_to=answers)
    with pytest.raises(MailboxFullError, match="holds 1 of 1"):
        requests.send("too much")
    [message] = requests.receive()
    message.reply("three")
    assert 3 == answers.approximate_count()


@pytest.mark.parametrize("other", ["memory", "sqlite"])
def test_a_reply_to_a_mailbox_of_another_store_is_refused(tmp_path: Path, other: str) -> None:
    mailbox: Any = open_mailbox(MemoryStore(), "requests")
    store = MemoryStore() if other == "memory" else SqliteDatabase(tmp_path / "other.db")
    with pytest.raises(UnsupportedError, match="another store"):
        mailbox.send(1, reply_to=open_mailbox(store, "answers"))


def test_one_file_is_one_store_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_mailbox("sqlite:///jobs.db", "requests")
    absolute = open_mailbox(f"sqlite:///{tmp_path}/jobs.db", "answers")
    another = open_mailbox(f"sqlite:///{tmp_path}/other.db", "answers")
    assert relative.backend.store_identity == absolute.backend.store_identity
    assert relative.backend.store_identity != another.backend.store_identity


def test_a_transaction_of_another_store_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    with (
        SqliteDatabase(tmp_path / "shop.db") as shop,
        SqliteDatabase(tmp_path / "queue.db") as queue,
    ):
        orders = open_mailbox(queue, "orders")
        with pytest.raises(UnsupportedError, match="transaction of another store"):
            shop.transact(lambda tx: orders.send(1, tx=tx))
        assert (0, []) == (orders.approximate_count(), mailbox_names(shop))


def test_one_store_by_two_names_is_one_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "queue.db")
    with (
        SqliteDatabase(tmp_path / "queue.db") as queue,
        SqliteDatabase(tmp_path / "link.db") as link,
    ):
        orders = open_mailbox(link, "orders")
        queue.transact(lambda tx: orders.send(1, tx=tx))
        assert 1 == orders.approximate_count()


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("postgresql://host/shop", "psycopg", "postgres"), ("redis://host/0", "redis", "redis")],
)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [
        name
        for name in sys.modules
        if name.startswith((f"longwatch.store.{extra}", f"longwatch.mailbox.{extra}"))
    ]:
        monkeypatch.delitem(sys.modules, loaded)
        parent, _, name = loaded.rpartition(".")
        if name == extra:  # the failed import puts another package there
            monkeypatch.setattr(sys.modules[parent], name, getattr(sys.modules[parent], name))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UsageError,
        match=rf"needs {module}, which is not installed; run: pip install '{module}\b",
    ):
        open_mailbox(url, "work")


@pytest.mark.parametrize(
    "url",
    ["postgre://me:secret@host/shop", "sqlite://me:secret@host/a.db", "sqlite://me:secret@[x",
     "redis:me:secret@host", "me:secret@host", "//me:secret@host",
     "sqlite:///a.db?password=secret", "kafka://host?user=me&password=secret",
     "a?b&password=secret"],
)  # fmt: skip
def test_a_store_shows_where_it_is_without_the_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", [b"sqlite:///a.db", Path("a.db"), None, 5], ids=str)
@pytest.mark.parametrize(
    "opens", [open_store, lambda url: open_mailbox(url, "jobs")], ids=["store", "mailbox"]
)
def test_a_store_is_named_by_text(opens: Any, url: Any) -> None:
    with pytest.raises(UsageError, match=f"sqlite:///jobs.db, got {type(url).__name__}$"):
        opens(url)


@pytest.mark.parametrize("largest", [0, -1, 1.5, float("nan"), "x", True, None])
def test_the_largest_body_is_a_whole_number(largest: Any) -> None:
    with pytest.raises(
        InvalidParameterError, match=r"^max_body_bytes must be a whole number of 1 or more"
    ):
        open_mailbox(MemoryStore(), "jobs", max_body_bytes=largest)


@pytest.mark.parametrize("name", ["plain.db", "a#b?c%20.db", "mit Leerzeichen ü.db"])
def test_the_url_of_a_store_leads_back_to_it(tmp_path: Path, name: str) -> None:
    store = SqliteDatabase(tmp_path / name)
    assert store.identity == open_store(store.url).identity
