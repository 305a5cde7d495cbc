"""A dataset on its way to an EvalLoop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longwatch.errors import InvalidParameterError, SerializationError
from longwatch.evals.dataset import Dataset, Sample
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.messages import MainLoopRequest

_UNSENDABLE = (SerializationError, InvalidParameterError)


def submit_dataset(
    dataset: Dataset | Iterable[Sample],
    requests: Mailbox[Any],
    *,
    reply_to: Mailbox[Any] | str,
    tx: Any = None,
) -> list[str]:
    """Send every sample, or none, to be answered to `reply_to`; the ids of the messages, in the
    order of the samples.
    """
    samples = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    bodies = [MainLoopRequest(sample, sample.id) for sample in samples]
    try:
        return requests.send_many(bodies, reply_to=reply_to, tx=tx)
    except _UNSENDABLE as error:
        if (culprit := _unsendable(bodies, requests)) is None:
            raise
        raise type(error)(f"sample {culprit!r} cannot be sent: {error}") from None


def _unsendable(bodies: Iterable[MainLoopRequest[Sample]], requests: Mailbox[Any]) -> str | None:
    """The first that the mailbox does not take."""
    for body in bodies:
        try:
            requests.codec.encode(body)
        except _UNSENDABLE:
            return body.request_id
    return None
