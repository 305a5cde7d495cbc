"""The workers of this process that have room: who makes an attempt ready leases it to one of them
in the same transaction.

That saves the worker's own claim, one commit of two between a `set` and the first line of the
node's code. Any other worker finds what was not handed over as always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from longwatch.flow.records import Kind, announce_work
from longwatch.flow.source import FlowSource, Making
from longwatch.flow.standing import Standing
from longwatch.store.database import Database, Transaction
from longwatch.work.engine import Engine
from longwatch.work.offers import Offer

T = TypeVar("T")


class Hand(NamedTuple):
    """A worker that runs."""

    engine: Engine
    source: FlowSource
    pid: int


class Hands:
    """The running workers of one Flow. Thread-safe: the list is replaced, never changed."""

    def __init__(self) -> None:
        self._hands: tuple[Hand, ...] = ()

    @contextmanager
    def lent(self, engine: Engine, source: FlowSource) -> Iterator[None]:
        """For as long as this engine runs."""
        hand = Hand(engine, source, os.getpid())
        self._hands = (*self._hands, hand)
        try:
            yield
        finally:
            self._hands = tuple(each for each in self._hands if each is not hand)

    def write(self, database: Database, kind: Kind, making: Making[T]) -> T:
        """Do this work in a transaction, and hand over what it made ready."""
        hand, offer = self._offered(kind)
        if hand is None or offer is None:
            return database.write(lambda tx: _told(tx, making(tx, None), kind))
        try:
            return database.write(lambda tx: hand.source.hand_over(tx, offer, kind, making))
        except BaseException:
            offer.in_doubt = True
            raise
        finally:
            offer.close()

    def _offered(self, kind: Kind) -> tuple[Hand | None, Offer | None]:
        for hand in self._hands:
            if (
                hand.pid == os.getpid()
                and kind in hand.source.registry.graphs
                and (offer := hand.engine.offer(_MOST))
            ):
                return hand, offer
        return None, None


_MOST = 4
"""Attempts handed over at once: a change makes few ready, and a worker that is handed much
leaves nothing to others.
"""


def _told(tx: Transaction, made: tuple[T, Standing | None], kind: Kind) -> T:
    result, standing = made
    if standing is not None and standing.openings:
        announce_work(tx, [kind])
    return result
