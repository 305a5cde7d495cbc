"""All contenders of one store, round by round, so that a busy moment of the machine hits all of
them alike.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from queueing.contenders import CONTENDERS, YARDSTICKS, Contender
from queueing.stores import Store
from queueing.tables import Race
from queueing.trial import Reading, TrialError, measure


def run(
    store: Store, rounds: int, only: Sequence[str], contenders: Sequence[Contender] | None = None
) -> Race:
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


def yardstick(kind: str) -> str | None:
    return YARDSTICKS.get(kind)


def _add(
    results: dict[str, list[Reading] | TrialError], contender: Contender, store: Store
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
