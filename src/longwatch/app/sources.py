"""What a worker process has leased, as its parent finds it: by the whereabouts that the process
tells.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from longwatch.mailbox import opening
from longwatch.work.source import Source

FLOW = "flow"


def found_source(whereabouts: Mapping[str, str], stores: MutableMapping[str, Any]) -> Source:
    """The source that `Source.whereabouts` of another process speaks of; `stores` are those that
    are open, by URL.
    """
    if whereabouts.get("kind") != FLOW:
        return opening.found_source(whereabouts, stores)
    from longwatch.app.flow_leases import FlowLeases  # noqa: PLC0415 - a parent of other loops does without

    url = whereabouts["url"]
    if url not in stores:
        stores[url] = opening.open_store(url)
    return FlowLeases(stores[url])
