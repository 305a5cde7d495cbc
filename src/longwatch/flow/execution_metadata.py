"""Metadata of executions: a small JSON object beside the values, for people and programs outside
the graph.

No node depends on it, so a change is no new revision and opens no attempt. It is not part of
`ExecutionState`: a cached execution stays valid, and a change does not raise `changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from longwatch.errors import InvalidParameterError, SerializationError, UsageError
from longwatch.flow.records import Records
from longwatch.store.database import Transaction
from longwatch.store.json_codec import Codec, CodecWording

MAX_METADATA_BYTES = 64 << 10
"""Bytes of the metadata of one execution as JSON."""
_CODEC: Codec[Any] = Codec(
    max_bytes=MAX_METADATA_BYTES,
    checks_fields=False,
    wording=CodecWording("metadata", action="kept", cure="keep the data elsewhere, or in an input"),
)


def encode_metadata(metadata: Mapping[str, Any] | None) -> str | None:
    """Encode the metadata of an execution; None if there is none. Leaves out keys whose value is
    None. Raises UsageError for anything but a JSON object of at most 64 KiB.
    """
    kept = {key: value for key, value in _require_object(metadata).items() if value is not None}
    return _encode(kept) if kept else None


def read_metadata(tx: Transaction, records: Records, number: int) -> dict[str, Any] | None:
    """Read the metadata of an execution; None if the execution does not exist."""
    return _decode(tx.rows(records.sql["metadata"], {"execution": number}))


def merge_metadata(
    tx: Transaction, records: Records, number: int, changes: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Lock an execution and merge changes into its metadata, where None removes a key. Returns the
    new metadata; None if the execution does not exist. Raises UsageError as `encode_metadata` does.
    """
    wanted = _require_object(changes)
    present = _decode(tx.rows(records.sql["lock_metadata"], {"execution": number}))
    if present is None:
        return None
    encoded = encode_metadata({**present, **wanted})
    tx.execute(records.sql["set_metadata"], {"execution": number, "metadata": encoded})
    return _decode([(encoded,)])


def _require_object(metadata: Any) -> Mapping[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise UsageError(
            f"metadata must be a JSON object, such as {{'owner': 'ada'}}, not "
            f"{type(metadata).__name__}"
        )
    for key in metadata:
        if not isinstance(key, str):
            raise UsageError(f"a key of metadata must be text, not {key!r}")
    return metadata


def _encode(metadata: dict[str, Any]) -> str:
    try:
        return _CODEC.encode(metadata).decode()
    except (SerializationError, InvalidParameterError) as error:
        raise UsageError(str(error)) from None


def _decode(rows: list[Any]) -> dict[str, Any] | None:
    if not rows:
        return None
    [(text,)] = rows
    decoded: dict[str, Any] = msgspec.json.decode(text or "{}")
    return decoded
