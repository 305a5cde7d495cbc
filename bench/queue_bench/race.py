"""All contenders of one store, round by round, so that a busy moment of the machine hits all of
them alike.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from queue_bench.contenders import BASELINES, CONTENDERS, QueueContender
from queue_bench.stores import BenchStore
from queue_bench.tables import RaceResults
from queue_bench.trial import Reading, TrialError, measure


def run_race(
    store: BenchStore,
    rounds: int,
    only: Sequence[str],
    contenders: Sequence[QueueContender] | None = None,
) -> RaceResults:
    """Who fails once does not run again; what it did before does not count."""
    results: dict[str, list[Reading] | TrialError] = {}
    for number in range(rounds):
        for contender in CONTENDERS[store.kind] if contenders is None else contenders:
            if not only or contender.name.startswith(tuple(only)):
                print(
                    f"{store.kind}, round {number + 1}: {contender.name}",
                    file=sys.stderr,
                    flush=True,
                )
                _add(results, contender, store)
    return results


def baseline(kind: str) -> str | None:
    return BASELINES.get(kind)


def _add(
    results: dict[str, list[Reading] | TrialError], contender: QueueContender, store: BenchStore
) -> None:
    so_far = results.setdefault(contender.name, [])
    if isinstance(so_far, TrialError):
        return
    try:
        so_far.append(measure(contender, store.fresh(), store.folder))
    except TrialError as failure:
        results[contender.name] = failure
    except Exception as error:  # noqa: BLE001 - whatever one contender meets, the others run
        results[contender.name] = TrialError(f"{type(error).__name__}: {error}")
