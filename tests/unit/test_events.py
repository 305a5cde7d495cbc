from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
import sys
import threading
from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core import events
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Event, Events, Level
from longwatch.core.events.programs import ProgramEnded, ProgramStable
from longwatch.core.events.supervisor import SignalReceived
from longwatch.host.background_thread import BackgroundThread

MODULES = [
    import_module(found.name)
    for found in pkgutil.iter_modules(events.__path__, f"{events.__name__}.")
]
KINDS = list(
    dict.fromkeys(
        kind
        for module in MODULES
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Event)
    )
)
A_SIGNAL = SignalReceived(signal=15, action="stop")


def broken(_: Event) -> None:
    raise RuntimeError("an observer that cannot")


def blank(kind: type[Event]) -> Event:
    """An event of this kind with every field None."""
    return kind(**{field.name: None for field in dataclasses.fields(kind)})


def test_every_observer_hears_every_event_in_the_order_of_subscribing() -> None:
    heard: list[tuple[str, Event]] = []
    bus = Events(lambda event: heard.append(("a", event)))
    bus.subscribe(lambda event: heard.append(("b", event)))
    bus.emit(A_SIGNAL)

    assert [("a", A_SIGNAL), ("b", A_SIGNAL)] == heard


@given(observers=st.lists(st.booleans(), max_size=8), rounds=st.integers(0, 5))
def test_an_observer_that_raises_harms_nobody_and_is_counted(
    observers: list[bool], rounds: int
) -> None:
    heard: list[Event] = []
    bus = Events(*[heard.append if fine else broken for fine in observers])
    for _ in range(rounds):
        bus.emit(A_SIGNAL)

    assert (rounds * observers.count(True), rounds * observers.count(False)) == (
        len(heard),
        bus.failures,
    )


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_an_observer_that_exits_in_a_thread_does_not_end_it(error: BaseException) -> None:
    heard: list[Event] = []

    def leave(_: Event) -> None:
        raise error

    bus = Events(leave, heard.append)
    ended = BackgroundThread(lambda: bus.emit(A_SIGNAL), name="emitter")
    ended.start()
    assert ended.done.block(20.0)
    assert (None, [A_SIGNAL], 1) == (ended.error, heard, bus.failures)


def test_an_interrupt_of_the_main_thread_is_not_lost_in_an_observer() -> None:
    def interrupted(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events(interrupted).emit(A_SIGNAL)


def test_without_observers_an_event_goes_nowhere() -> None:
    Events().emit(A_SIGNAL)


def test_who_unsubscribed_hears_no_more() -> None:
    heard: list[Event] = []
    bus = Events()
    unsubscribe = bus.subscribe(heard.append)
    bus.emit(A_SIGNAL)
    unsubscribe()
    unsubscribe()
    bus.emit(A_SIGNAL)

    assert [A_SIGNAL] == heard


def test_an_observer_may_unsubscribe_while_it_is_told() -> None:
    heard: list[Event] = []
    bus = Events()
    unsubscribe = bus.subscribe(lambda _: unsubscribe())
    bus.subscribe(heard.append)
    bus.emit(A_SIGNAL)
    bus.emit(A_SIGNAL)

    assert ([A_SIGNAL, A_SIGNAL], 0) == (heard, bus.failures)


def test_an_observer_may_emit_and_subscribe_while_it_is_told() -> None:
    heard: list[str] = []
    bus = Events()

    def curious(event: Event) -> None:
        heard.append(event.name)
        if event is A_SIGNAL:
            bus.subscribe(lambda event: heard.append(f"also {event.name}"))
            bus.emit(ProgramStable(program="web", pid=1, lasted=60.0))

    bus.subscribe(curious)
    bus.emit(A_SIGNAL)

    assert ["signal_received", "program_stable", "also program_stable"] == heard


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_come_and_go_take_no_one_else_off_or_back_on() -> None:
    bus = Events(broken)
    together = threading.Barrier(4)

    def come_and_go() -> None:
        together.wait()
        for _ in range(300):
            bus.subscribe(lambda _: None)()
        bus.subscribe(lambda _: None)
        bus.emit(A_SIGNAL)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (5, 4) == (len(bus._observers), bus.failures)


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_a_frozen_keyword_only_dataclass_with_slots(kind: type[Event]) -> None:
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]

    assert (True, True) == ("__dataclass_fields__" in vars(kind), parameters.frozen)
    assert "__slots__" in vars(kind)
    assert not hasattr(blank(kind), "__dict__")
    assert all(field.kw_only for field in dataclasses.fields(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_no_event_can_be_changed(kind: type[Event]) -> None:
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(blank(kind), field.name, 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ProgramEnded])
def test_the_name_of_an_event_is_its_class_in_snake_case(kind: type[Event]) -> None:
    name = blank(kind).name

    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
    assert kind.__name__ == name.title().replace("_", "")


def test_the_end_of_a_program_is_named_by_its_verdict() -> None:
    ended = ProgramEnded(
        program="web",
        pid=1,
        verdict="clean_exit",
        cause=EndCause.exit(0),
        lasted=1.0,
        restart=False,
    )

    assert "clean_exit" == ended.name


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_has_a_level_from_the_list(kind: type[Event]) -> None:
    assert isinstance(blank(kind).level, Level)


def test_the_names_are_unique() -> None:
    names = [blank(kind).name for kind in KINDS]

    assert sorted(set(names), key=str) == sorted(names, key=str)


def test_the_walk_over_the_events_finds_them() -> None:
    assert {ProgramEnded, ProgramStable, SignalReceived} < set(KINDS)
