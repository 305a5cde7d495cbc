"""A loop over a mailbox that calls `handle` for every message."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Generic, TypeVar, get_args, get_origin

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.coroutines import is_coroutine_function
from longwatch.engine.engine import EnginePolicy
from longwatch.engine.engine_loop import EngineLoop
from longwatch.engine.policy import MAX_SLOTS, EngineEnvironment
from longwatch.engine.run_guard import RunHandle
from longwatch.errors import UsageError
from longwatch.mailbox import validation
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import require_no_generator_function
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.request import OutputCheck, OutputT, RequestDecoder, RequestT
from longwatch.runtime.request_runner import RequestRunner

_REQUEST, _OUTPUT = 0, 1
"""Positions of the type arguments of MainLoop."""


class MainLoop(EngineLoop, Generic[RequestT, OutputT]):
    """Claims messages from `requests`, calls `handle` for each, and sends the output as a reply. It
    runs `concurrency` messages at a time. The reply goes to the `reply_to` of the message, else to
    `responses`, else nowhere.

    A subclass writes `handle`. The type of its requests is the first type argument, `class
    Pages(MainLoop[Url, Page])`, or `request_type`. `retry` is the backoff between attempts of a
    message whose handler raises. The constructor starts and opens nothing.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        *,
        requests: Mailbox[Any],
        responses: Mailbox[Any] | None = None,
        name: str | None = None,
        concurrency: int = 1,
        shutdown_timeout: float | None = None,
        request_type: Any = None,
        retry: BackoffPolicy | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        super().__init__(name=name, shutdown_timeout=shutdown_timeout, clock=clock, events=events)
        self.requests = requests
        self.responses = responses
        self.concurrency = validation.validate_positive_int(
            "concurrency", concurrency, maximum=MAX_SLOTS
        )
        self.retry = retry or EnginePolicy().retry
        self._decoder: RequestDecoder[Any] = RequestDecoder(
            request_type or _type_argument(type(self), _REQUEST)
        )
        self._output_check = OutputCheck(_type_argument(type(self), _OUTPUT))
        self._check_handle()

    @abstractmethod
    def handle(self, request: RequestT, context: MainLoopContext) -> Any:
        """Handle one request and return the output, which is sent as the reply. May be
        `async def`.
        """

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Run until `max_iterations` polls are made, `shutdown` is called, or the mailbox is
        closed. Blocks.

        A message is leased for `visibility_timeout`. The lease is renewed as long as the handler
        beats at least that often. Under a parent the lease is 15 seconds, and the parent renews it.
        """
        super().run(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._display_name} on {self.requests!r}>"

    def decode_request(self, body: Any) -> RequestT:
        """Convert a plain value to a request for `handle`. Raises SerializationError if that is
        impossible.
        """
        request: RequestT = self._decoder.convert(body)
        return request

    @property
    def is_async(self) -> bool:
        """Whether `handle` is `async def`, so that its messages need no thread while they wait."""
        return is_coroutine_function(self.handle)

    # --- what the engine is given ---

    @property
    def _source(self) -> ClaimSource:
        return self.requests.backend

    @property
    def store_identity(self) -> object:
        return self.requests.backend.store_identity

    def _make_runner(self, environment: EngineEnvironment) -> RequestRunner:
        return RequestRunner(
            self.handle,
            self._decoder,
            self._output_check,
            requests=self.requests,
            responses=self.responses,
            retry=self.retry,
            name=environment.name,
            clock=self.clock,
            events=environment.events,
            runs_coroutines=self.is_async,
        )

    def _stop_listeners(self, run: RunHandle) -> Iterable[Callable[[], None]]:
        """Closing the mailbox ends the run."""
        return [self.requests.on_close(run.stop_requested.set)]

    def _policy_for(self, max_polls: int | None, visibility: float, wait: float) -> EnginePolicy:
        visibility, wait = (
            validation.validate_visibility(visibility),
            validation.validate_wait(wait),
        )
        if max_polls:
            validation.validate_positive_int("max_iterations", max_polls)
        if not visibility:
            raise UsageError("visibility_timeout must be more than 0 seconds; 300 is a good value")
        return EnginePolicy(
            slots=self.concurrency,
            lease=LeasePolicy(visibility),
            retry=self.retry,
            stale_after=visibility,
            max_polls=max_polls,
            poll_wait=wait if isfinite(wait) else 86_400.0,
        )

    def _check_handle(self) -> None:
        kind = type(self).__name__
        require_no_generator_function(self.handle)
        try:
            inspect.signature(self.handle).bind(object(), object())
        except TypeError as error:
            raise UsageError(
                f"{kind}.handle cannot be called with a request and a context ({error}); "
                f"write: def handle(self, request, context)"
            ) from None


def _type_argument(kind: Any, position: int) -> Any:
    """The type argument that a class gives for a parameter of MainLoop, directly or in its bases;
    Any without one.
    """
    found = _given_argument(kind, position)
    return Any if isinstance(found, TypeVar) else found


def _given_argument(kind: Any, position: int) -> Any:
    origin: Any = get_origin(kind) or kind
    given = get_args(kind)
    if origin is MainLoop:
        return given[position] if given else Any
    bases = origin.__dict__.get("__orig_bases__", origin.__bases__)
    base = next(each for each in bases if issubclass(get_origin(each) or each, MainLoop))
    found = _given_argument(base, position)
    return dict(zip(origin.__parameters__, given, strict=False)).get(found, found)
