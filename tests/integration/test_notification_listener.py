"""The listener's thread over a connection of the test's own: what every adapter relies on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest

from leaks import no_leaks
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError
from longwatch.store.notify.listener import ChannelsToWake, NotificationListener, Received
from polling import eventually

NEVER = 10_000.0
TIMEOUT = 30.0


class PipeConnection:
    """A connection that is a pipe: what is written to it arrives."""

    def __init__(self) -> None:
        self.is_polling_only = False
        self.came_meanwhile = Received()
        self.fileno, self._writer = os.pipe()
        os.set_blocking(self.fileno, False)
        self.subscribed: set[str] = set()
        self.is_alive = True
        self.is_closed = False

    def send(self, text: str) -> None:
        os.write(self._writer, text.encode() + b" ")

    def start(self) -> Iterable[ChannelsToWake]:
        return (None,)

    def subscribe(self, channels: set[str]) -> None:
        self.subscribed = channels

    def receive(self) -> Received:
        words = os.read(self.fileno, 4096).decode().split()
        if "break" in words:
            raise ConnectionError("broken")
        if "bug" in words:
            raise LookupError("a bug")
        return Received(
            {word for word in words if not word.startswith("missed-")},
            missed={word[7:] for word in words if word.startswith("missed-")},
        )

    def check_alive(self) -> Received:
        if not self.is_alive:
            raise ConnectionError("silent")
        return self.came_meanwhile

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        self.abandon()

    def abandon(self) -> None:
        os.close(self.fileno)
        os.close(self._writer)


class PipeListener(NotificationListener):
    thread_name = "pipe-listener"
    connection_errors = (OSError,)
    linger = 60.0

    def __init__(self, *, wake_interval: float = NEVER) -> None:
        super().__init__(wake_interval=wake_interval)
        self.made: list[PipeConnection] = []

    def connect(self) -> PipeConnection:
        self.made.append(PipeConnection())
        return self.made[-1]


@pytest.fixture
def listener() -> Iterator[PipeListener]:
    made = PipeListener()
    with no_leaks():
        yield made
        made.close()
    assert all(connection.is_closed for connection in made.made)


def listen_on(listener: PipeListener, channel: str) -> Wakeup:
    """A subscription whose connection exists: its start has woken it, or it did before."""
    wakeup = Wakeup()
    is_first = not listener.made
    listener.listen(channel, wakeup)
    if is_first:
        assert wakeup.block(TIMEOUT)
        wakeup.clear()
    return wakeup


def test_a_notification_wakes_its_channel_alone(listener: PipeListener) -> None:
    here, elsewhere = listen_on(listener, "here"), listen_on(listener, "elsewhere")
    listener.made[0].send("here")
    assert here.block(TIMEOUT)
    assert not elsewhere.is_set()


class ReasonRecorder(Wakeup):
    """Records why it was woken, each reason once in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def set(self) -> None:
        self._record("set")

    def hint(self) -> None:
        self._record("hint")

    def poll(self) -> None:
        self._record("poll")

    def _record(self, reason: str) -> None:
        if self.reasons[-1:] != [reason]:
            self.reasons.append(reason)


def test_a_wakeup_learns_whether_a_notification_came_or_was_missed(listener: PipeListener) -> None:
    """The start of a connection counts as missed; so does a channel that it newly receives."""
    wakeup = ReasonRecorder()
    listener.listen("a", wakeup)
    assert eventually(lambda: wakeup.reasons == ["set"])
    listener.made[0].send("a")
    assert eventually(lambda: wakeup.reasons == ["set", "hint"])
    listener.made[0].send("missed-a")
    assert eventually(lambda: wakeup.reasons == ["set", "hint", "set"])


def test_what_came_with_the_reply_of_a_silent_server_is_a_hint() -> None:
    listener = PipeListener(wake_interval=0.01)
    wakeup = ReasonRecorder()
    listener.listen("a", wakeup)
    assert eventually(lambda: wakeup.reasons == ["set", "poll"])
    listener.made[0].came_meanwhile = Received({"a"})
    assert eventually(lambda: wakeup.reasons[:3] == ["set", "poll", "hint"])
    listener.close()


def test_the_wake_interval_only_polls_where_notifications_arrive() -> None:
    listener = PipeListener(wake_interval=0.01)
    wakeup = ReasonRecorder()
    listener.listen("a", wakeup)
    assert eventually(lambda: wakeup.reasons == ["set", "poll"])
    listener.made[0].is_polling_only = True
    assert eventually(lambda: wakeup.reasons == ["set", "poll", "set"])
    listener.close()


def test_a_new_channel_is_subscribed_at_once_and_stays_when_it_is_left(
    listener: PipeListener,
) -> None:
    listen_on(listener, "a")
    end = listener.listen("b", Wakeup())
    assert eventually(lambda: listener.made[0].subscribed == {"a", "b"})
    end()
    end()
    listener.listen("c", Wakeup())
    assert eventually(lambda: listener.made[0].subscribed == {"a", "b", "c"})


def test_a_broken_connection_is_made_again_and_everything_missed_is_woken(
    listener: PipeListener,
) -> None:
    wakeup = listen_on(listener, "a")
    listener.made[0].send("break")
    assert eventually(lambda: len(listener.made) == 2)
    assert wakeup.block(TIMEOUT)
    assert eventually(lambda: listener.made[1].subscribed == {"a"})
    wakeup.clear()
    listener.made[1].send("a")
    assert wakeup.block(TIMEOUT)


def test_a_silent_connection_is_made_again() -> None:
    listener = PipeListener(wake_interval=0.01)
    listen_on(listener, "a")
    listener.made[0].is_alive = False
    assert eventually(lambda: len(listener.made) > 1)
    listener.close()


def test_a_busy_channel_does_not_delay_the_wake_interval_of_another() -> None:
    listener = PipeListener(wake_interval=0.3)
    quiet = listen_on(listener, "quiet")
    connection, over = listener.made[0], threading.Event()
    receive = connection.receive

    def receive_and_send_again() -> Received:
        if not over.is_set():
            connection.send("busy")
        return receive()

    connection.receive = receive_and_send_again  # type: ignore[method-assign]
    connection.send("busy")
    assert quiet.block(TIMEOUT)
    over.set()
    listener.close()


def test_an_error_that_is_not_the_connection_s_is_reported_and_the_next_listen_starts_anew(
    listener: PipeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = list[BaseException | None]()
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    listen_on(listener, "a")
    listener.made[0].send("bug")
    assert eventually(lambda: [type(each) for each in reported] == [LookupError])
    assert listener._thread is not None
    assert listener._thread.done.block(TIMEOUT)
    wakeup = Wakeup()
    listener.listen("a", wakeup)
    assert wakeup.block(TIMEOUT)
    assert 2 == len(listener.made)


def test_a_listener_closed_by_a_wakeup_ends(listener: PipeListener) -> None:
    wakeup = listen_on(listener, "a")
    wakeup.subscribe(listener.close)
    listener.made[0].send("a")
    assert eventually(lambda: listener.made[0].is_closed)
    with pytest.raises(StoreClosedError, match="open it again"):
        listener.listen("a", wakeup)


def test_a_listener_closed_before_it_connects_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection that `listen` made is closed by a thread that never used it."""
    monkeypatch.setattr(PipeListener, "connects_in_caller", True)
    with no_leaks():
        listener = PipeListener()
        run = listener._run

        def close_first(*arguments: object) -> None:
            listener._closed = True
            run(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(listener, "_run", close_first)
        with suppress(StoreClosedError):
            listener.listen("a", Wakeup())
        listener.close()
    assert [True] == [connection.is_closed for connection in listener.made]


def test_a_forked_child_closes_its_copies_and_the_parent_goes_on(listener: PipeListener) -> None:
    wakeup = listen_on(listener, "a")
    pipe = listener._pipe
    assert pipe is not None
    if (pid := os.fork()) == 0:
        listener._lock.acquire()
        pipe._lock.acquire()
        listener.abandon()
        closed = 0
        for descriptor in (listener.made[0].fileno, pipe.fileno):
            try:
                os.fstat(descriptor)
            except OSError:
                closed += 1
        os._exit(0 if closed == 2 else 1)
    assert 0 == os.waitpid(pid, 0)[1]
    listener.made[0].send("a")
    assert wakeup.block(TIMEOUT)
