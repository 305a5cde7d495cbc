"""`longwatch mailbox …` and `longwatch db …` of the installed wheel, as somebody at a shell or a
script has them.
"""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from longwatch.mailbox import Mailbox, MailboxLimits, open_mailbox, open_store
from markdown_files import ROOT, Page
from run_process import TIMEOUT, PipeLines, clean_environment

FILE = "longwatch.db"
NO_STORE = (
    "longwatch: no store at sqlite:///longwatch.db; `longwatch db migrate` makes one, or give "
    "--store\n"
)
LOOKING = (
    ("mailbox", "ls"),
    ("mailbox", "stats", "jobs"),
    ("mailbox", "peek", "jobs"),
    ("mailbox", "dead", "ls", "jobs"),
    ("mailbox", "dead", "show", "jobs", "1"),
    ("db", "status"),
)
CHANGING = (
    ("mailbox", "pause", "jobs"),
    ("mailbox", "resume", "jobs"),
    ("mailbox", "cancel", "jobs", "1"),
    ("mailbox", "purge", "jobs", "--yes"),
    ("mailbox", "dead", "replay", "jobs", "--all", "--yes"),
    ("mailbox", "dead", "drop", "jobs", "--all", "--yes"),
)
DESTRUCTIVE = (
    ("mailbox", "purge", "jobs"),
    ("mailbox", "dead", "replay", "jobs", "--all"),
    ("mailbox", "dead", "drop", "jobs", "--all"),
    ("mailbox", "dead", "drop", "jobs", "1"),
)

line = " ".join
"""The id of a case: its command line."""


class Shell:
    """A directory in which `longwatch` is called."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd

    def __call__(
        self, *words: str | bytes, given: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.longwatch, *words],
            check=False,
            cwd=self.cwd,
            env=clean_environment(env),
            input=given,
            capture_output=True,
            timeout=TIMEOUT,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def output(self, *words: str, given: bytes = b"") -> str:
        """What it says when all is well, without the last line end."""
        done = self(*words, given=given)
        assert (0, "") == (done.returncode, done.stderr), done.stderr
        return done.stdout.removesuffix("\n")

    def json_output(self, *words: str, given: bytes = b"") -> Any:
        """What it tells a machine."""
        return json.loads(self.output(*words, "--json", given=given))

    def refusal(self, *words: str | bytes, given: bytes = b"", code: int = 2, **env: str) -> str:
        """The one line of a refusal, without its `longwatch: `."""
        done = self(*words, given=given, **env)
        assert (code, "") == (done.returncode, done.stdout), done.stderr
        [said] = done.stderr.removesuffix("\n").split("\n")
        return said.removeprefix("longwatch: ")

    @contextmanager
    def mailbox(
        self, name: str = "jobs", *, limits: MailboxLimits | None = None
    ) -> Iterator[Mailbox[Any]]:
        """The same mailbox from the library's side."""
        with closing(open_store(f"sqlite:///{self.cwd / FILE}")) as store:
            yield open_mailbox(store, name, limits=limits)

    def kill(self, *bodies: Any) -> list[str]:
        """Dead letters of mailbox jobs: each body failed once, which was once too often."""
        with self.mailbox(limits=MailboxLimits(max_failures=1)) as mailbox:
            ids = mailbox.send_many(bodies)
            for message in mailbox.receive(max_messages=len(bodies)):
                message.nack(reason="ValueError: no \x1b[31mgood")
            assert [] == mailbox.receive()
        return ids


@pytest.fixture
def shell(longwatch_bin: Path, tmp_path: Path) -> Shell:
    return Shell(longwatch_bin, tmp_path)


def stats_of(**facts: Any) -> dict[str, Any]:
    counts = {"ready": 0, "delayed": 0, "leased": 0, "dead": 0, "expired": 0}
    return {"mailbox": "jobs", **counts, "oldest_age": None, "paused": False, **facts}


# --- a store that is not there ---


@pytest.mark.parametrize("words", [*LOOKING, *CHANGING], ids=line)
def test_only_send_and_migrate_make_a_store(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell(*words)
    assert (2, "", NO_STORE) == (done.returncode, done.stdout, done.stderr)
    assert [] == list(shell.cwd.iterdir())


@pytest.mark.parametrize("words", [*LOOKING[:-1], *CHANGING], ids=line)
def test_a_database_without_mailboxes_is_left_as_it_is(
    shell: Shell, words: tuple[str, ...]
) -> None:
    with closing(sqlite3.connect(shell.cwd / FILE)) as other:
        other.execute("CREATE TABLE something_else (n INTEGER)")
    before = (shell.cwd / FILE).read_bytes()
    expected = (
        "sqlite:///longwatch.db holds no mailboxes; `longwatch mailbox send` makes one, or give "
        "--store"
    )
    assert expected == shell.refusal(*words)
    assert before == (shell.cwd / FILE).read_bytes()


@pytest.mark.parametrize("words", [*LOOKING[1:-1], *CHANGING], ids=line)
def test_a_mailbox_that_is_not_there_is_not_made_and_the_nearest_is_named(
    shell: Shell, words: tuple[str, ...]
) -> None:
    shell.output("mailbox", "send", "job", "1")
    expected = "there is no mailbox 'jobs' in sqlite:///longwatch.db; did you mean job?"
    assert expected == shell.refusal(*words)
    assert ["job"] == [each["mailbox"] for each in shell.json_output("mailbox", "ls")]


def test_the_store_comes_from_the_option_or_else_from_the_environment(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1", "--store", "sqlite:///one.db")
    done = shell("mailbox", "send", "jobs", "1", LONGWATCH_STORE="sqlite:///two.db")
    assert 0 == done.returncode
    assert "no store at sqlite:///three.db;" in shell.refusal(
        "mailbox", "ls", "--store", "sqlite:///three.db", LONGWATCH_STORE="sqlite:///one.db"
    )
    assert ["one.db", "two.db"] == sorted(path.name for path in shell.cwd.glob("*.db"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://", "a memory:// store is seen by one process only"),
        ("sqlit:///x.db", "did you mean sqlite://?"),
        ("nosuch://me:word@host/db", "no store is known for 'nosuch://***@host/db'"),
        ("sqlite://", "names no file"),
        ("sqlite://[x", "names no file"),
        ("sqlite:///a#b.db", "write %23"),
        ("sqlite:///a.db?mode=ro", "write %3F"),
        (
            "nosuch://host/db?user=me&password=word",
            "no store is known for 'nosuch://host/db?user=me&password=***'",
        ),
        ("redis:me:word@host", "no store is known for 'redis:***@host'; did you mean redis://?"),
    ],
)
def test_a_url_that_names_no_store_is_refused(shell: Shell, url: str, said: str) -> None:
    refusal = shell.refusal("mailbox", "send", "jobs", "1", "--store", url)
    assert said in refusal
    assert [] == list(shell.cwd.iterdir())


@pytest.mark.parametrize(
    "words",
    [("mailbox", "ls"), ("mailbox", "send", "jobs", "1"), ("db", "status"), ("db", "migrate")],
    ids=line,
)
def test_a_file_that_is_no_database_needs_a_person(shell: Shell, words: tuple[str, ...]) -> None:
    (shell.cwd / FILE).write_text("no database, but long enough to be looked at\n" * 100)
    refusal = shell.refusal(*words, code=100)
    assert refusal.endswith(
        "longwatch.db is not a SQLite database; name another file, or move this one aside"
    )


# --- sending and looking ---


def test_a_sent_message_is_received_by_the_library(shell: Shell) -> None:
    sent = shell.output("mailbox", "send", "jobs", '{"page": [1, 2.50, "é"]}')
    with shell.mailbox() as mailbox:
        [message] = mailbox.receive()
        assert (sent, {"page": [1, 2.5, "é"]}) == (message.id, message.body)


@pytest.mark.parametrize(
    ("words", "given", "body"),
    [
        (("-",), b'{\n "a": 1\n}\n', {"a": 1}),
        ((), b"[1]", [1]),
        (("--text", "plain words"), b"", "plain words"),
        (("--text", "-"), b"two\nlines\n", "two\nlines\n"),
        (("--text",), b"", ""),
        (("123456789012345678901234567890",), b"", 123456789012345678901234567890),
    ],
    ids=repr,
)
def test_a_body_is_an_argument_or_standard_input_and_json_or_text(
    shell: Shell, words: tuple[str, ...], given: bytes, body: Any
) -> None:
    shell.output("mailbox", "send", "jobs", *words, given=given)
    [message] = shell.json_output("mailbox", "peek", "jobs")
    assert (body, None) == (message["body"], message["raw"])


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (("{x",), b"", "the body is not JSON: "),
        ((), b"", "the body is empty; write it as JSON, or use --text"),
        (("-",), b'"\xff"', "the body is not UTF-8: byte 1 "),
        (("--text",), b"\xff", "the body is not UTF-8: byte 0 "),
        ((), b'"' + b"x" * (1 << 20) + b'"', "the body is larger than 1048576 bytes"),
        (("1", "--delay", "-1"), b"", "--delay takes a duration, for example 300,"),
        (("1", "--expires-in", "0"), b"", "--expires-in takes a duration from 0.001 s to"),
        (("1", "--reply-to", "no name"), b"", "a mailbox name has 1 to 200 letters"),
        (("1", "--header", "tenant"), b"", "--header takes NAME=VALUE, for example tenant=acme"),
        (("1", "--header", "Tenant=a"), b"", "the name of a header has 1 to 200 lower-case"),
        (("1", "--header", "a=" + "x" * 8192), b"", "the headers of a message have at most 8192"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_sent_is_refused_and_makes_no_store(
    shell: Shell, words: tuple[str, ...], given: bytes, said: str
) -> None:
    assert shell.refusal("mailbox", "send", "jobs", *words, given=given).startswith(said)
    assert [] == list(shell.cwd.iterdir())


def test_words_that_are_no_text_are_wrong_use(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    expected = "takes text in UTF-8, got '\\udcff'"
    assert f"ID {expected}" == shell.refusal("mailbox", "cancel", "jobs", b"\xff")
    assert f"--dedupe-key {expected}" == shell.refusal(
        "mailbox", "send", "jobs", "1", "--dedupe-key", b"\xff"
    )


def test_options_of_send_reach_the_message(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1", "--delay", "3600")
    first = shell.output(
        "mailbox",
        "send",
        "jobs",
        "2",
        "--dedupe-key",
        "k",
        "--reply-to",
        "answers",
        "--expires-in",
        "3600",
    )
    assert {"id": first} == shell.json_output("mailbox", "send", "jobs", "3", "--dedupe-key", "k")
    [told] = shell.json_output("mailbox", "peek", "jobs")
    assert (first, 2, "answers") == (told["id"], told["body"], told["reply_to"])
    with closing(sqlite3.connect(shell.cwd / FILE)) as store:
        [(lasts,)] = store.execute(
            "SELECT expires_at - enqueued_at FROM longwatch_messages WHERE dedupe_key = 'k'"
        )
    assert 3600 == pytest.approx(lasts)


def test_headers_are_sent_and_shown_with_their_secrets_masked(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    plain = shell.output("mailbox", "peek", "jobs").split("\n")[0]
    assert ["id", "age", "deliveries", "body"] == plain.split()
    words = ("--header", "tenant=a=b", "--header", "api-key=s3cret")
    sent = shell.output("mailbox", "send", "jobs", "2", *words)
    shown = {"tenant": "a=b", "api-key": "***"}
    assert [{}, shown] == [each["headers"] for each in shell.json_output("mailbox", "peek", "jobs")]
    head, _, last = shell.output("mailbox", "peek", "jobs").split("\n")
    assert ["id", "age", "deliveries", "body", "headers"] == head.split()
    assert last.endswith("tenant=a=b api-key=***")
    with shell.mailbox() as mailbox:
        message = mailbox.receive(max_messages=2)[1]
        assert {"tenant": "a=b", "api-key": "s3cret"} == message.headers
        message.reject("no")
    shown_dead = shell.output("mailbox", "dead", "show", "jobs", sent)
    assert "headers      tenant=a=b api-key=***" in shown_dead.split("\n")
    assert shown == shell.json_output("mailbox", "dead", "show", "jobs", sent)["headers"]


def test_peek_shows_what_would_come_next_and_leases_nothing(shell: Shell) -> None:
    with shell.mailbox() as mailbox:
        ids = mailbox.send_many(range(12))
        [taken] = mailbox.receive()
        told = shell.json_output("mailbox", "peek", "jobs")
        assert ids[1:11] == [each["id"] for each in told]
        assert ids[1:3] == [
            each["id"] for each in shell.json_output("mailbox", "peek", "jobs", "--limit", "2")
        ]
        assert (11, 0, 1) == mailbox.stats()[:3]
        taken.nack()
        assert ids[:1] == [message.id for message in mailbox.receive()]


def test_peek_counts_what_is_due_and_leaves_out_what_has_expired(shell: Shell) -> None:
    with closing(open_store(f"sqlite:///{shell.cwd / FILE}")) as store:
        mailbox = open_mailbox(store, "jobs")
        mailbox.send("expired", expires_in=60)
        mailbox.send("due", delay_seconds=60)
        mailbox.send("later", delay_seconds=9999)
        mailbox.send("ready")
        store.jump.wall = 100.0
        assert [b'"due"', b'"ready"'] == [each.body for each in mailbox.backend.peek(limit=10)]
    assert ["expired", "ready"] == [
        each["body"] for each in shell.json_output("mailbox", "peek", "jobs")
    ]


def test_stats_and_ls_tell_how_mailboxes_stand(shell: Shell) -> None:
    shell.kill("bad")
    with shell.mailbox() as mailbox:
        mailbox.send_many([1, 2])
        mailbox.send(3, delay_seconds=60)
        mailbox.receive()
        told = shell.json_output("mailbox", "stats", "jobs")
        assert stats_of(ready=1, delayed=1, leased=1, dead=1) == {**told, "oldest_age": None}
        assert told["oldest_age"] > 0
        mailbox.pause()
        shell.output("mailbox", "send", "others", "1")
        assert [("jobs", True), ("others", False)] == [
            (each["mailbox"], each["paused"]) for each in shell.json_output("mailbox", "ls")
        ]
        head, jobs, others = shell.output("mailbox", "ls").split("\n")
    assert ["mailbox", "ready", "delayed", "leased", "dead", "oldest"] == head.split()
    assert ["jobs", "1", "1", "1", "1", "paused"] == [*jobs.split()[:5], jobs.split()[-1]]
    assert ["others", "1", "0", "0", "0"] == others.split()[:5]
    assert head.index("ready") + 4 == others.index("1")


def test_control_characters_of_others_are_escaped(shell: Shell) -> None:
    [dead] = shell.kill("\x1b]0;title\x07\u202e")
    shell.output("mailbox", "send", "jobs", "--text", "\x9b2J\u2028")
    outputs = [
        shell.output(*words)
        for words in (
            ("mailbox", "peek", "jobs"),
            ("mailbox", "peek", "jobs", "--json"),
            ("mailbox", "dead", "ls", "jobs"),
            ("mailbox", "dead", "show", "jobs", dead),
            ("mailbox", "dead", "show", "jobs", dead, "--json"),
        )
    ]
    assert [] == [
        char for output in outputs for char in output.replace("\n", "") if not char.isprintable()
    ]
    assert "\\x9b2J\\u2028" in outputs[0]
    assert "\\x1b[31m" in outputs[2]


def test_a_long_body_is_cut_for_people_and_whole_for_machines(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "--text", "x" * 1000)
    assert shell.output("mailbox", "peek", "jobs").endswith("… (882 more characters)")
    assert "x" * 1000 == shell.json_output("mailbox", "peek", "jobs")[0]["body"]


def test_a_body_that_is_not_json_is_told_in_base64(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    with closing(sqlite3.connect(shell.cwd / FILE)) as store, store:
        store.execute("UPDATE longwatch_messages SET body = x'ff00'")
    [told] = shell.json_output("mailbox", "peek", "jobs")
    assert (None, "/wA=") == (told["body"], told["raw"])
    assert shell.output("mailbox", "peek", "jobs").endswith(r"\xff\x00")


# --- changing ---


def test_a_paused_mailbox_hands_nothing_out_until_it_is_resumed(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    assert {"mailbox": "jobs", "paused": True} == shell.json_output("mailbox", "pause", "jobs")
    with shell.mailbox() as mailbox:
        assert [] == mailbox.receive()
        assert {"mailbox": "jobs", "paused": False} == shell.json_output(
            "mailbox", "resume", "jobs"
        )
        assert [1] == [message.body for message in mailbox.receive()]


def test_cancel_removes_a_queued_message_and_says_so_if_there_is_none(shell: Shell) -> None:
    sent = shell.output("mailbox", "send", "jobs", "1")
    assert {"mailbox": "jobs", "id": sent, "cancelled": True} == shell.json_output(
        "mailbox", "cancel", "jobs", sent
    )
    expected = (
        f"message '{sent}' is not queued in mailbox 'jobs': it was claimed or removed, or never "
        f"sent; check the ID and the mailbox"
    )
    assert expected == shell.refusal("mailbox", "cancel", "jobs", sent)


def test_purge_removes_what_nobody_has_taken(shell: Shell) -> None:
    with shell.mailbox() as mailbox:
        mailbox.send_many([1, 2, 3])
        mailbox.receive()
        assert {"mailbox": "jobs", "removed": 2} == shell.json_output(
            "mailbox", "purge", "jobs", "--yes"
        )
        assert (0, 1) == mailbox.stats()[0:3:2]


def test_dead_letters_are_listed_and_shown_with_their_history(shell: Shell) -> None:
    first, second = shell.kill({"n": 1}, {"n": 2})
    told = shell.json_output("mailbox", "dead", "ls", "jobs")
    assert [(first, "failed", 1), (second, "failed", 1)] == [
        (each["id"], each["reason"], each["failures"]) for each in told
    ]
    assert [told[0] | {"body": {"n": 1}, "raw": None, "traceback": None}] == [
        shell.json_output("mailbox", "dead", "show", "jobs", first)
    ]
    assert shell.output("mailbox", "dead", "ls", "jobs", "--limit", "1").endswith(
        "\n1 of 2; more with --limit"
    )
    assert "no dead letter 'x' in mailbox 'jobs'; " in shell.refusal(
        "mailbox", "dead", "show", "jobs", "x"
    )


def test_a_dead_letter_is_shown_with_its_traceback_as_lines(shell: Shell) -> None:
    """Lines of a traceback stay lines, and nothing in them reaches the terminal as a command."""
    [dead] = shell.kill({"n": 1})
    traceback = 'Traceback (most recent call last):\n  File "app.py", line 3\nValueError: \x1bno'
    with closing(sqlite3.connect(shell.cwd / FILE)) as database, database:
        database.execute("UPDATE longwatch_dead_letters SET traceback = ?", [traceback])
    shown = shell.output("mailbox", "dead", "show", "jobs", dead)
    assert shown.endswith(
        '\n\nTraceback (most recent call last):\n  File "app.py", line 3\nValueError: \\x1bno'
    )
    assert traceback == shell.json_output("mailbox", "dead", "show", "jobs", dead)["traceback"]
    assert "traceback" not in shell.json_output("mailbox", "dead", "ls", "jobs")[0]


@pytest.mark.parametrize(
    ("verb", "told", "ready"), [("replay", "replayed", 1), ("drop", "dropped", 0)]
)
def test_some_dead_letters_are_replayed_or_dropped_by_their_ids(
    shell: Shell, verb: str, told: str, ready: int
) -> None:
    first, second = shell.kill(1, 2)
    assert {"mailbox": "jobs", told: 1, "missing": []} == shell.json_output(
        "mailbox", "dead", verb, "jobs", first, first, "--yes"
    )
    assert [second] == [each["id"] for each in shell.json_output("mailbox", "dead", "ls", "jobs")]
    assert ready == shell.json_output("mailbox", "stats", "jobs")["ready"]


@pytest.mark.parametrize(
    ("verb", "told", "ready"), [("replay", "replayed", 250), ("drop", "dropped", 0)]
)
def test_all_dead_letters_are_replayed_or_dropped(
    shell: Shell, verb: str, told: str, ready: int
) -> None:
    shell.kill(*range(250))
    assert {"mailbox": "jobs", told: 250, "missing": []} == shell.json_output(
        "mailbox", "dead", verb, "jobs", "--all", "--yes"
    )
    stats = shell.json_output("mailbox", "stats", "jobs")
    assert (ready, 0) == (stats["ready"], stats["dead"])


def test_an_id_that_is_missing_is_told_after_the_others_were_done(shell: Shell) -> None:
    [first] = shell.kill(1)
    done = shell("mailbox", "dead", "replay", "jobs", "x", first, "--json")
    assert (2, {"mailbox": "jobs", "replayed": 1, "missing": ["x"]}) == (
        done.returncode,
        json.loads(done.stdout),
    )
    assert (
        "longwatch: no dead letter 'x' in mailbox 'jobs'; `longwatch mailbox dead ls jobs` "
        "lists them\n" == done.stderr
    )


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_which_dead_letters_has_to_be_said(shell: Shell, verb: str) -> None:
    shell.kill(1)
    wanted = "name the dead letters by their ids, or all of them with --all"
    assert wanted == shell.refusal("mailbox", "dead", verb, "jobs", "--yes")
    assert f"{wanted}; not both" == shell.refusal(
        "mailbox", "dead", verb, "jobs", "1", "--all", "--yes"
    )


# --- asking first ---


@pytest.mark.parametrize("words", DESTRUCTIVE, ids=line)
def test_without_a_terminal_what_destroys_wants_yes(shell: Shell, words: tuple[str, ...]) -> None:
    shell.kill(1)
    shell.output("mailbox", "send", "jobs", "2")
    refusal = shell.refusal(*words, given=b"y\n")
    assert refusal.endswith(
        "of mailbox 'jobs' for good? There is no terminal to ask at; add --yes to confirm"
    ) or (
        "Replay 1 dead letter of mailbox 'jobs'? There is no terminal to ask at; "
        "add --yes to confirm" == refusal
    )
    stats = shell.json_output("mailbox", "stats", "jobs")
    assert (1, 1) == (stats["ready"], stats["dead"])


@pytest.mark.parametrize(
    ("answer", "code", "left", "said"),
    [
        ("y", 0, 0, "1 message removed\n"),
        ("YES", 0, 0, "1 message removed\n"),
        ("", 1, 1, ""),
        ("n", 1, 1, ""),
        ("yeah", 1, 1, ""),
    ],
)
def test_at_a_terminal_only_yes_means_yes(
    shell: Shell, answer: str, code: int, left: int, said: str
) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command: list[str | Path] = [shell.longwatch, "mailbox", "purge", "jobs"]
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=shell.cwd,
            env=clean_environment(),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert (code, said) == (done.returncode, done.stdout)
    assert done.stderr.startswith("Remove 1 message of mailbox 'jobs' for good? [y/N] ")
    assert left == shell.json_output("mailbox", "stats", "jobs")["ready"]


def test_ctrl_c_at_the_question_is_told_and_nothing_is_done(shell: Shell) -> None:
    shell.output("mailbox", "send", "jobs", "1")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(shell.cwd)
        os.execve(shell.longwatch, ["longwatch", "mailbox", "purge", "jobs"], clean_environment())
    said = b""
    while b"[y/N] " not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # how a terminal tells its end
        while more := os.read(terminal, 1000):
            said += more
    os.close(terminal)
    assert 130 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (
        "Remove 1 message of mailbox 'jobs' for good? [y/N] ^C\r\nlongwatch: interrupted\r\n"
        == said.decode()
    )
    assert 1 == shell.json_output("mailbox", "stats", "jobs")["ready"]


# --- the schema ---


def test_db_status_tells_what_is_pending_and_migrate_makes_it(shell: Shell) -> None:
    (shell.cwd / FILE).touch()
    url = "sqlite:///longwatch.db"
    before = shell.json_output("db", "status")
    assert (url, 0, 0, 12, 10) == tuple(
        before[name] for name in ("store", "schema", "min_reader", "known", "min_reader_after")
    )
    steps = [
        "0004_initial",
        "0005_blame",
        "0006_runner",
        "0007_settled_executions",
        "0008_complete_flow",
        "0009_headers",
        "0010_min_reader",
        "0011_storage",
        "0012_sweep_turns",
    ]
    assert steps == before["pending"]
    assert 0 == (shell.cwd / FILE).stat().st_size
    made = shell.json_output("db", "migrate")
    migrated = {"store": url, "from": 0, "to": 12, "min_reader": 10, "applied": before["pending"]}
    assert migrated == made
    assert {**before, "schema": 12, "min_reader": 10, "pending": []} == shell.json_output(
        "db", "status"
    )
    said = shell.output("db", "migrate")
    assert f"{url} is at schema 12, for versions from 10 on: nothing to do" == said


def test_a_store_that_a_newer_version_expanded_is_told_and_used(shell: Shell) -> None:
    shell.output("db", "migrate")
    with closing(sqlite3.connect(shell.cwd / FILE)) as store, store:
        store.execute("INSERT INTO longwatch_schema VALUES (9998, 'far', CURRENT_TIMESTAMP, 10)")
    told = shell.json_output("db", "status")
    assert (9998, 10, []) == (told["schema"], told["min_reader"], told["pending"])
    assert "a newer Longwatch expanded the store" in shell.output("db", "status")
    said = shell.output("db", "migrate")
    assert "is at schema 9998, for versions from 10 on: nothing to do" in said
    shell.output("mailbox", "send", "jobs", "1")
    assert 1 == shell.json_output("mailbox", "stats", "jobs")["ready"]


def test_db_migrate_makes_a_store_that_only_its_owner_can_read(shell: Shell) -> None:
    shell.output("db", "migrate", "--store", "sqlite:///new.db")
    assert 0o600 == (shell.cwd / "new.db").stat().st_mode & 0o777
    assert "no mailboxes in sqlite:///new.db" == shell.output(
        "mailbox", "ls", "--store", "sqlite:///new.db"
    )


def test_a_store_of_a_newer_version_is_told_and_not_used(shell: Shell) -> None:
    shell.output("db", "migrate")
    with closing(sqlite3.connect(shell.cwd / FILE)) as store, store:
        store.execute(
            "INSERT INTO longwatch_schema (version, name, applied_at) "
            "VALUES (9999, 'far', CURRENT_TIMESTAMP)"
        )
    told = shell.json_output("db", "status")
    assert (9999, []) == (told["schema"], told["pending"])
    assert "made by a newer Longwatch" in shell.output("db", "status")
    for words in (("mailbox", "ls"), ("mailbox", "send", "jobs", "1"), ("db", "migrate")):
        assert f"{FILE} was made by a newer Longwatch (schema 9999, " in shell.refusal(*words)


def test_a_store_of_schema_3_is_refused_with_the_cure(shell: Shell) -> None:
    with closing(sqlite3.connect(shell.cwd / FILE)) as store, store:
        store.execute("CREATE TABLE longwatch_schema (version INTEGER, name TEXT, applied_at TEXT)")
        store.execute("INSERT INTO longwatch_schema VALUES (3, 'flow', CURRENT_TIMESTAMP)")
    for words in (("mailbox", "send", "jobs", "1"), ("db", "migrate")):
        refusal = shell.refusal(*words)
        assert "made by an older Longwatch (schema 3), which cannot be migrated; " in refusal
        assert "name a new file or an empty database" in refusal
    assert [] == shell.json_output("db", "status")["pending"]
    assert "made by an older Longwatch, which cannot be migrated" in shell.output("db", "status")


# --- two shells ---


@pytest.fixture
def consumer(wheel_python: Path, shell: Shell) -> Iterator[Callable[[], str]]:
    """The consumer of the tutorial, at work; gives the next line that it prints."""
    [block] = [
        block
        for block in Page.read(ROOT / "docs" / "tutorial-mailbox.md").blocks
        if "longwatch.db" in block.text and block.info
    ]
    with subprocess.Popen(
        [wheel_python, "-u", "-c", block.text],
        cwd=shell.cwd,
        env=clean_environment(),
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        lines = PipeLines(running.stdout.fileno())
        yield lambda: (lines.next_line(time.monotonic() + TIMEOUT) or b"").decode().rstrip("\n")
        running.kill()


def test_what_one_shell_sends_the_consumer_of_the_tutorial_receives_in_another(
    shell: Shell, consumer: Callable[[], str]
) -> None:
    assert "waiting for messages" == consumer()
    sent = shell.output("mailbox", "send", "jobs", '{"page": 1}')
    assert f"{sent} {{'page': 1}} delivery 1" == consumer()
