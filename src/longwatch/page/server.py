"""The HTTP server of the page: decides on access, and leads requests to views and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from longwatch.app.page_plan import TOKEN_PARAMETER
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.page import PageViewFailed
from longwatch.errors import LongwatchError, TryAgainError
from longwatch.host.background_thread import BackgroundThread
from longwatch.page.access import (
    ACTION_FIELD,
    STATIC_PREFIX,
    AccessDecision,
    AccessPolicy,
    access_request,
)
from longwatch.page.action_runner import (
    ActionRunner,
    Notice,
    Notices,
    confirmation_view,
    is_confirmed,
)
from longwatch.page.connections import IdleConnections
from longwatch.page.data import PageData
from longwatch.page.http_log import http_logger
from longwatch.page.live import LiveHub, Sections
from longwatch.page.live_streams import LiveStreams
from longwatch.page.pool import ThreadPool
from longwatch.page.rendering import (
    NavigationEntry,
    PageRenderer,
    RenderedPage,
    with_query,
)
from longwatch.page.static_files import StaticFiles
from longwatch.page.stores import StoreUnavailableError
from longwatch.page.view import (
    Action,
    NotFoundError,
    Route,
    View,
    ViewRequest,
)

VIEW_TIMEOUT = 8.0
FOLLOW_INTERVAL = 0.25
"""Seconds between two looks at the log of events."""
MAX_FORM_BYTES = 64 * 1024
FORM_TIMEOUT = 10.0
"""Seconds in which a form must arrive."""
POOL_SIZE = 4
STOP_TIMEOUT = 0.5
_COOKIE_SECONDS = 30 * 86_400
_COOKIE_PREFIX = "longwatch_page_"
"""The name of the cookie, before the port: browsers send cookies of a host to all its ports."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "longwatch",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_REFUSALS = {
    AccessDecision.WRONG_HOST: (HTTPStatus.MISDIRECTED_REQUEST, "wrong_host"),
    AccessDecision.OTHER_SITE: (HTTPStatus.FORBIDDEN, "other_site"),
    AccessDecision.NO_TOKEN: (HTTPStatus.UNAUTHORIZED, "no_token"),
    AccessDecision.WRONG_TOKEN: (HTTPStatus.UNAUTHORIZED, "wrong_token"),
    AccessDecision.WRONG_ACTION_TOKEN: (HTTPStatus.FORBIDDEN, "wrong_action_token"),
}


class PageServer:
    """Serves the page on one event loop.

    `start` binds the socket and `stop` closes everything within `STOP_TIMEOUT`.
    """

    def __init__(  # noqa: PLR0913 - the parts of the page
        self,
        data: PageData,
        policy: AccessPolicy,
        *,
        routes: Sequence[Route],
        actions: Sequence[Action],
        clock: Clock,
        events: Events,
    ) -> None:
        self._data = data
        self._policy = policy
        self._routes = routes
        self._actions = actions
        self._clock = clock
        self._events = events
        self._cookie = ""
        self._pool = ThreadPool(POOL_SIZE, name="page-view")
        self._action_runner = ActionRunner(data, events=events)
        self._renderer = PageRenderer(
            action_token=policy.action_token,
            navigation=[
                NavigationEntry(route.pattern, route.navigation)
                for route in routes
                if route.navigation
            ],
        )
        self._hub = LiveHub(self._render_sections, clock=clock)
        self._static = StaticFiles()
        self._connections = IdleConnections(clock=clock)
        self._streams = LiveStreams(self._hub, headers=_HEADERS)
        self._notices = Notices()
        self._runner: web.AppRunner | None = None
        self._following: BackgroundThread | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def live_clients(self) -> int:
        """The number of open streams."""
        return self._hub.client_count

    # --- life ---

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the address cannot be used."""

        @web.middleware  # and no routes: the router answers some addresses by itself
        async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:  # noqa: ARG001 - passed by name
            return await self._handle(request)

        app = web.Application(client_max_size=MAX_FORM_BYTES, middlewares=[handle])
        runner = web.AppRunner(
            app,
            logger=http_logger(),
            access_log=None,
            auto_decompress=False,  # a small body may expand to gigabytes, on the event loop
            handle_signals=False,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, reuse_address=True)
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        port = int(runner.addresses[0][1])
        self._cookie = f"{_COOKIE_PREFIX}{port}"
        self._pool.start()
        self._action_runner.start()
        loop = asyncio.get_running_loop()
        self._following = BackgroundThread(
            lambda: self._follow_events(loop), name="page-history", report_errors=True
        )
        self._following.start()
        self._ticking = loop.create_task(self._tick())
        return port

    async def stop(self) -> None:
        """End all streams and close the socket. Idempotent. Threads that are busy go on alone."""
        self._is_stopping = True
        self._hub.close()
        self._pool.stop()
        self._action_runner.stop()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT):
                    await runner.cleanup()
        self._data.close()

    def _follow_events(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read new events as they come. Runs in a thread, because the disk may block."""
        never = Wakeup()
        while not self._is_stopping:
            if self._data.events.refresh() and not loop.is_closed():
                with suppress(RuntimeError):  # the loop is just being closed
                    loop.call_soon_threadsafe(self._hub.changed)
            self._clock.wait(never, FOLLOW_INTERVAL)

    async def _tick(self) -> None:
        while True:
            self._hub.tick()
            self._streams.close_disconnected()
            if self._runner is not None and self._runner.server is not None:
                self._connections.close_idle(self._runner.server.connections)
            await asyncio.sleep(FOLLOW_INTERVAL)

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        connection = request.protocol
        self._connections.begin(connection)
        try:
            return await self._answer(request)
        finally:
            self._connections.end(connection)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._respond(request)
        except web.HTTPRequestEntityTooLarge:
            response = self._problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too large.")
        except TimeoutError:
            response = self._problem(HTTPStatus.REQUEST_TIMEOUT, "The form did not arrive.")
            response.force_close()
        except (web.RequestPayloadError, HttpProcessingError):
            response = self._problem(HTTPStatus.BAD_REQUEST, "The form cannot be read.")
        except Exception as error:  # noqa: BLE001 - a fault of ours: the page says so, the log has it
            path = request.rel_url.raw_path
            self._events.emit(PageViewFailed(path=path, error=describe_error(error)))
            response = self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The request failed.")
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        form: dict[str, str] = {}
        if "Content-Encoding" in request.headers:
            return self._problem(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "A form is sent without compression."
            )
        if request.method == "POST":
            async with asyncio.timeout(FORM_TIMEOUT):
                body = (await request.read()).decode(errors="replace")
            form = dict(parse_qsl(body, keep_blank_values=True))
        path = request.rel_url.raw_path
        decision = self._decide(request, path, form)
        if decision is AccessDecision.SIGN_IN:
            return self._sign_in(request, path)
        if decision is not AccessDecision.ALLOWED:
            return self._refuse(decision, request)
        if path.startswith(STATIC_PREFIX):
            return self._static.response(request.method, path) or self._not_found(path)
        if path == "/live" and request.method == "GET":
            return await self._stream(request)
        return await self._dispatch(request, path, form)

    async def _dispatch(
        self, request: web.Request, path: str, form: Mapping[str, str]
    ) -> web.Response:
        query, form = _without_zero_bytes(request.query), _without_zero_bytes(form)
        notice = self._notices.find(query.pop("notice", ""))
        asked = ViewRequest(path, {}, query, form)
        allowed = []
        for action in self._actions:
            if (found := action.match(path)) is not None:
                allowed.append("POST")
                if request.method == "POST":
                    return await self._act(action, replace(asked, parameters=found))
        for route in self._routes:
            if (found := route.match(path)) is not None:
                allowed += ["GET", "HEAD"]
                if request.method in {"GET", "HEAD"}:
                    return await self._show(route, replace(asked, parameters=found), notice)
        if allowed:
            response = self._problem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"This address takes {', '.join(allowed)}, not {request.method}.",
                path=path,
            )
            response.headers["Allow"] = ", ".join(allowed)
            return response
        return self._not_found(path)

    def _decide(self, request: web.Request, path: str, form: Mapping[str, str]) -> AccessDecision:
        asked = access_request(request.method, path, request.headers)
        if len(request.headers.getall("Host", [])) != 1:
            return AccessDecision.WRONG_HOST
        return self._policy.decide(
            replace(
                asked,
                cookie=request.cookies.get(self._cookie, ""),
                link_token=request.query.get(TOKEN_PARAMETER),
                action_token=form.get(ACTION_FIELD, ""),
            )
        )

    def _sign_in(self, request: web.Request, path: str) -> web.Response:
        """Set the cookie, and lead to the path without the token. A browser that came from another
        site would not send the cookie after a redirect, so it gets a page that leads on.
        """
        target = with_query(path, {**request.query, TOKEN_PARAMETER: ""})
        if target.startswith(("//", "/\\")):  # would be another host
            target = "/"
        if request.headers.get("Sec-Fetch-Site", "") in {"cross-site", "same-site"}:
            view = View("Signed in", "signed_in.html", {"target": target})
            response = self._html(self._renderer.render(view, path=path))
        else:
            response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": target})
        response.set_cookie(
            self._cookie,
            self._policy.cookie_value,
            max_age=_COOKIE_SECONDS,
            httponly=True,
            samesite="Strict",
            secure=request.headers.get("X-Forwarded-Proto", "") == "https",
        )
        return response

    def _refuse(self, decision: AccessDecision, request: web.Request) -> web.Response:
        status, reason = _REFUSALS[decision]
        host = request.headers.get("Host", "")[:100]
        view = View("No access", "refused.html", {"reason": reason, "host": host}, status)
        response = self._html(self._renderer.render(view, path=""), status)
        if status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = 'Bearer realm="longwatch"'
        return response

    # --- views and actions ---

    async def _show(self, route: Route, asked: ViewRequest, notice: Notice | None) -> web.Response:
        rendered, status = await self._render(partial(route.view, self._data), asked, notice)
        return self._html(rendered, status)

    async def _render(
        self,
        view: Callable[[ViewRequest], View],
        asked: ViewRequest,
        notice: Notice | None = None,
    ) -> tuple[RenderedPage, int]:
        """Run a view and its template in the pool. A failure becomes a page that says it."""

        def make() -> tuple[RenderedPage, int]:
            made = view(asked)
            return self._renderer.render(made, path=asked.path, notice=notice), made.status

        try:
            return await self._pool.run(make, timeout=VIEW_TIMEOUT)
        except NotFoundError as error:
            problem = _problem_view(HTTPStatus.NOT_FOUND, f"Nothing here: {error}.")
        except TimeoutError:
            problem = _problem_view(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"This page took longer than {VIEW_TIMEOUT:g} s.",
                waits=self._data.stores.problems(),
            )
        except (StoreUnavailableError, LongwatchError) as error:
            problem = _problem_view(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours: the page says so, the log has it
            self._events.emit(PageViewFailed(path=asked.path, error=describe_error(error)))
            problem = _problem_view(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"This page failed: {describe_error(error)}"
            )
        return self._renderer.render(problem, path=asked.path), problem.status

    async def _render_sections(self, target: str) -> Sections:
        """The live sections of a path with its query. Raises TryAgainError if it has a problem."""
        parts = urlsplit(target)
        query = _without_zero_bytes(dict(parse_qsl(parts.query, keep_blank_values=True)))
        for route in self._routes:
            if (found := route.match(parts.path)) is not None:
                asked = ViewRequest(parts.path, found, query)
                rendered, status = await self._render(partial(route.view, self._data), asked)
                if status >= HTTPStatus.BAD_REQUEST:
                    raise TryAgainError("this cannot be shown at the moment; reload to see why")
                return rendered.sections
        raise NotFoundError(parts.path)

    async def _act(self, action: Action, asked: ViewRequest) -> web.Response:
        if not is_confirmed(asked):
            return self._html(
                *await self._render(partial(confirmation_view, action, self._data), asked)
            )
        try:
            done = await self._action_runner.run(action, asked)
        except NotFoundError as error:
            return self._problem(HTTPStatus.NOT_FOUND, f"Nothing here: {error}.", path=asked.path)
        number = self._notices.add(Notice(done.message, done.ok))
        path, _, query = done.back.partition("?")
        target = with_query(path, dict(parse_qsl(query)), notice=number)
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": target})

    # --- live ---

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        path = request.query.get("path", "")
        if not any(route.match(_path_of(path)) is not None for route in self._routes):
            return self._not_found(path)
        return await self._streams.serve(request, path)

    # --- answers ---

    def _html(self, rendered: RenderedPage, status: int = HTTPStatus.OK) -> web.Response:
        return web.Response(
            status=status,
            body=rendered.html.encode(errors="replace"),
            content_type="text/html",
            charset="utf-8",
        )

    def _not_found(self, path: str) -> web.Response:
        return self._problem(HTTPStatus.NOT_FOUND, "There is no such page.", path=path)

    def _problem(self, status: HTTPStatus, text: str, *, path: str = "") -> web.Response:
        view = _problem_view(status, text)
        return self._html(self._renderer.render(view, path=path), status)


def _path_of(target: str) -> str:
    """The path of a path with its query; empty if it is not valid."""
    try:
        return urlsplit(target).path
    except ValueError:
        return ""


def _without_zero_bytes(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as every store can compare them: PostgreSQL refuses zero bytes."""
    return {name: value.replace("\0", "") for name, value in fields.items()}


def _problem_view(status: HTTPStatus, text: str, waits: object = ()) -> View:
    return View(status.phrase, "problem.html", {"text": text, "waits": waits}, status)
