"""The files of `page/static`, which need no token."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from longwatch.page.access import STATIC_PREFIX

_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFiles:
    """The files of `page/static`, read once."""

    def __init__(self) -> None:
        self._files = {
            entry.name: entry.read_bytes()
            for entry in (files("longwatch.page") / "static").iterdir()
            if _suffix(entry.name) in _STATIC_TYPES
        }

    def response(self, method: str, path: str) -> web.Response | None:
        name = path.removeprefix(STATIC_PREFIX)
        body = self._files.get(name)
        if body is None or method not in {"GET", "HEAD"}:
            return None
        return web.Response(body=body, content_type=_STATIC_TYPES[_suffix(name)], charset="utf-8")


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
