"""Runs the actions of the page in threads of their own, and keeps the notices of their results."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.page import PageActionTaken
from longwatch.errors import LongwatchError
from longwatch.page.access import ACTION_FIELD
from longwatch.page.data import PageData
from longwatch.page.pool import NotBegunError, ThreadPool
from longwatch.page.view import (
    Action,
    ActionDone,
    Confirmation,
    NotFoundError,
    View,
    ViewRequest,
)

ACTION_TIMEOUT = 20.0
ACTION_POOL_SIZE = 8
"""Actions at the same time. They have threads of their own, so that slow ones hold up no view."""
_MAX_NOTICES = 100
_CONFIRMED_FIELD = "confirmed"


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of an action, shown above the next page."""

    message: str
    ok: bool


class Notices:
    """The newest notices, by the number that an address names."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, Notice] = OrderedDict()
        self._numbers = itertools.count(1)

    def add(self, notice: Notice) -> str:
        """Keep a notice; returns its number."""
        number = str(next(self._numbers))
        self._notices[number] = notice
        while len(self._notices) > _MAX_NOTICES:
            self._notices.popitem(last=False)
        return number

    def find(self, number: str) -> Notice | None:
        return self._notices.get(number)


class ActionRunner:
    """Runs confirmed actions, and emits each with its result. Used on the event loop."""

    def __init__(self, data: PageData, *, events: Events) -> None:
        self._data = data
        self._events = events
        self._pool = ThreadPool(ACTION_POOL_SIZE, name="page-action")

    def start(self) -> None:
        self._pool.start()

    def stop(self) -> None:
        """Take no more actions. Idempotent. Threads that are busy go on alone."""
        self._pool.stop()

    async def run(self, action: Action, asked: ViewRequest) -> ActionDone:
        """Run an action; an error or a timeout is in its result. Raises NotFoundError if its
        subject does not exist.
        """
        asking: Confirmation | None = None

        def act() -> ActionDone:
            nonlocal asking
            asking = action.confirm(self._data, asked)
            try:
                return action.run(self._data, asked)
            except LongwatchError as error:
                return ActionDone(asking.back, str(error), ok=False)

        try:
            done = await self._pool.run(act, timeout=ACTION_TIMEOUT)
        except NotFoundError:
            raise
        except NotBegunError:
            done = ActionDone(
                "/", f"{action.name} was not begun: other actions are going on; try again", ok=False
            )
        except TimeoutError:
            back = asking.back if asking else "/"
            done = ActionDone(back, f"{action.name} was sent and is not finished yet")
        except Exception as error:  # noqa: BLE001 - the notice and the event have the error
            back = asking.back if asking else "/"
            reason = str(error) if isinstance(error, LongwatchError) else describe_error(error)
            done = ActionDone(back, f"{action.name} failed: {reason}", ok=False)
        self._events.emit(
            PageActionTaken(
                action=action.name,
                subject=asking.subject if asking else asked.path,
                ok=done.ok,
                program=asking.program if asking else "",
                error="" if done.ok else done.message,
            )
        )
        return done


def is_confirmed(asked: ViewRequest) -> bool:
    """Whether the form is that of the confirmation."""
    return asked.form.get(_CONFIRMED_FIELD) == "yes"


def confirmation_view(action: Action, data: PageData, asked: ViewRequest) -> View:
    """The page that asks for the confirmation of an action."""
    asking = action.confirm(data, asked)
    own = {ACTION_FIELD, _CONFIRMED_FIELD}
    fields = {name: value for name, value in asked.form.items() if name not in own}
    return View(
        asking.title, "confirm.html", {"asking": asking, "path": asked.path, "fields": fields}
    )
