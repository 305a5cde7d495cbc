"""docs/reference/events.md: a table of events for each module of `longwatch.core.events`.

What an event means is the docstring of its class, and what a field means the docstring below the
field. A class whose level depends on its fields says how in the docstring of `level`.
"""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType

from longwatch.core import events
from longwatch.core.events.base import Event
from longwatch.core.events.programs import ProgramEnded
from longwatch.supervisor.restart_policy import EndVerdict
from reference.docstrings import as_phrase, class_docstring, field_docstring
from reference.parts import Part, ReferencePage, cell, table

HEADER = ("event", "level", "when", "fields")
OTHER_NAMES: dict[type[Event], tuple[str, ...]] = {ProgramEnded: tuple(EndVerdict)}
"""Events whose names in logs are not those of their classes."""
SEE = {
    "clean_exit": "[The exit table](../how-to/keep-a-command-up.md).",
    "restart_scheduled": "[Ends that do not count](cli.md#longwatch-worker).",
    "work_released": "[Give a message back](../how-to/long-handlers.md#give-a-message-back).",
    "message_dead_lettered": "[All reasons](../how-to/handle-poison.md).",
    "attempts_ended": "[All causes](metrics.md#graphs).",
    "timeouts_mismatched": "[Choose timeouts](../how-to/choose-loop-timeouts.md).",
    "suspect_process_not_started": (
        "[Suspects](../how-to/handle-poison.md#crashes-losses-and-suspects)."
    ),
}
"""Pages that say more, by the name of the event."""
_COMMON = {"pid"}
"""Fields that every record has."""


def parts() -> Mapping[str, Part]:
    return {
        f"events of {name}": Part(
            table(HEADER, [row(each) for each in classes]), heading=f"## {title(module)}"
        )
        for name, module in modules()
        if (classes := event_classes(module))
    }


def modules() -> Iterator[tuple[str, ModuleType]]:
    for found in pkgutil.iter_modules(events.__path__):
        yield found.name, import_module(f"{events.__name__}.{found.name}")


def title(module: ModuleType) -> str:
    """The first words of the docstring of a module as a heading."""
    first = (module.__doc__ or "").partition("\n")[0]
    subject = re.split(r"[.:,]", first.removeprefix("Events of "))[0]
    return subject[:1].upper() + subject[1:]


def event_classes(module: ModuleType) -> list[type[Event]]:
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Event)
        and each is not Event
        and each.__module__ == module.__name__
    ]


def names(event: type[Event]) -> tuple[str, ...]:
    own = re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()
    return OTHER_NAMES.get(event, (own,))


def row(event: type[Event]) -> tuple[str, ...]:
    known = sorted(names(event))
    sentences = [class_docstring(event)]
    if event.text:
        sentences.append(f"Message `{event.text}`.")
    if note := level_note(event):
        sentences.append(f"Level: {note}.")
    sentences += [SEE[name] for name in known if name in SEE]
    return (
        ", ".join(f"`{name}`" for name in known),
        event.default_level.value,
        cell(" ".join(sentence for sentence in sentences if sentence)),
        cell(fields(event)),
    )


def level_note(event: type[Event]) -> str:
    """How the level of an event depends on its fields; empty if it does not."""
    return "" if event.level is Event.level else as_phrase(event.level.__doc__ or "")


def fields(event: type[Event]) -> str:
    """The fields, each with its meaning where it has one."""
    told = [
        (field.name, as_phrase(field_docstring(event, field.name)))
        for field in dataclasses.fields(event)
    ]
    own = [(name, text) for name, text in told if text or name not in _COMMON]
    plain = ", ".join(f"`{name}`" for name, text in own if not text)
    explained = [f"`{name}`: {text.replace('None', 'null')}" for name, text in own if text]
    return "; ".join(filter(None, [plain, *explained]))


PAGE = ReferencePage("events.md", parts)
