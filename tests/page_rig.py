"""A status page over some stores, and a client that follows its forms like a browser without
JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from urllib.parse import urlencode

from longwatch.page.stores import StoreCatalog, store_key
from page_process import ServedPage, served_page


class RunningPage:
    """A page over stores; `keys` name them in its paths."""

    def __init__(self, served: ServedPage, urls: Sequence[str]) -> None:
        self.served = served
        self.keys = [store_key(url) for url in urls]
        self.base, self.link = served.base, served.link

    def get(self, path: str) -> str:
        """The HTML of a page; of an error page too."""
        return self.served.get(path).body

    def post(self, path: str, page: str, **fields: str) -> str:
        """Post the form of a page that has this path, with these fields. Returns the HTML of the
        confirmation, or of the page that follows the action.
        """
        token = forms(page)[path]["action_token"]
        answer = self.served.post(path, urlencode({**fields, "action_token": token}))
        return self.get(answer.headers["location"]) if answer.status == 303 else answer.body

    def confirm(self, path: str, page: str, **fields: str) -> str:
        """Post a form and its confirmation; the HTML of the page that follows."""
        asking = self.post(path, page, **fields)
        return self.post(path, asking, **{**forms(asking)[path], **fields})


class _Forms(HTMLParser):
    """Collects the hidden fields of the forms of a page, by their paths."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str]] = {}
        self._path = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "form":
            self._path = facts.get("action") or ""
            self.found[self._path] = {}
        elif tag == "input" and facts.get("type") == "hidden":
            self.found[self._path][facts.get("name") or ""] = facts.get("value") or ""


def forms(page: str) -> dict[str, dict[str, str]]:
    """The hidden fields of the forms of a page, by their paths."""
    parser = _Forms()
    parser.feed(page)
    return parser.found


@contextmanager
def running_page(*urls: str, timeout: float = 3.0) -> Iterator[RunningPage]:
    """A page over these stores. `timeout`: seconds that it waits for one of them."""
    with served_page(None, StoreCatalog(urls, timeout=timeout)) as served:
        yield RunningPage(served, urls)
