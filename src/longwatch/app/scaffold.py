"""`longwatch init`: writes an example `longwatch.toml`, with one program and every other setting as
a comment.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from longwatch.core.error_text import os_reason
from longwatch.errors import UsageError


def example_config() -> str:
    """The text of the file. A line that begins with `#` and no space is a setting with
    its default.
    """
    return (files("longwatch.app") / "example.toml").read_text(encoding="utf-8")


def write_example_config(path: Path, *, force: bool) -> None:
    """Write the file. Raises UsageError if it exists and `force` is false, or if it cannot be
    written.
    """
    try:
        (_replace if force else _create)(path)
    except FileExistsError:
        raise UsageError(
            f"{str(path)!r} exists already; keep it, or overwrite it with --force"
        ) from None
    except OSError as error:
        reason = os_reason(error)
        raise UsageError(
            f"cannot write {str(path)!r} ({reason}); choose another place with --config"
        ) from None


def _create(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(example_config())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _replace(path: Path) -> None:
    """Replace the file atomically. A symbolic link is followed."""
    target = Path(os.path.realpath(path))
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _create(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
