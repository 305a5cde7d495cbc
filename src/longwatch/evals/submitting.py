"""A dataset on its way to an EvalLoop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longwatch.evals.dataset import Dataset, Sample
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.messages import MainLoopRequest


def submit_dataset(
    dataset: Dataset | Iterable[Sample], requests: Mailbox[Any], *, reply_to: Mailbox[Any] | str, tx: Any = None
) -> list[str]:
    """Send every sample, or none, to be answered to `reply_to`; the ids of the messages, in the order of the samples."""
    samples = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    return requests.send_many([MainLoopRequest(sample, sample.id) for sample in samples], reply_to=reply_to, tx=tx)
