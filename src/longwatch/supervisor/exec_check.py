"""Health by a command: it runs as the program does, and its exit code is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from longwatch.core.endcause import EndCause
from longwatch.core.masking import mask_text
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.process import KILL_NOW, Child, ProcessSpec
from longwatch.supervisor.one_line import one_line
from longwatch.supervisor.probes import ExecProbe

_HEALTHY = EndCause.exit(0)
_NOT_FOR_PROBES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


class Spawner(Protocol):
    """The one thing that is wanted of a guardian."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


class LastWords:
    """A sink that keeps the last line that is not blank, however much is said."""

    congested = False
    _KEPT = 4096

    def __init__(self) -> None:
        self._line = b""

    def write(self, data: bytes) -> bool:
        if text := data.rstrip():
            self._line = text[text.rfind(b"\n") + 1 :].lstrip()[: self._KEPT]
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def __str__(self) -> str:
        """As it may be shown: masked before it is cut, so that no half of a secret is left."""
        return one_line(mask_text(self._line.decode(errors="replace")))


class ExecCheck:
    """Runs the command in the program's directory, environment, identity and limits.

    It is no part of the program: the notify socket is withheld from it, so that it cannot speak in
    the program's name. Cancelling kills its whole tree and waits until that is gone.
    """

    def __init__(self, probe: ExecProbe, *, guardian: Spawner, process: ProcessSpec) -> None:
        self._guardian = guardian
        self._words = LastWords()
        env = {name: value for name, value in process.env.items() if name not in _NOT_FOR_PROBES}
        self._spec = replace(process, argv=probe.command, env=env, stdin=None)

    async def ask(self) -> str | None:
        """None if it exits with 0, else how it ended and its last line; as long as it takes."""
        self._words = LastWords()
        try:
            cause = await self._run()
        except (SpawnError, GuardianLostError) as error:
            return one_line(str(error))
        return None if cause == _HEALTHY else self._with_words(cause.spoken)

    def overran(self, seconds: float) -> str:
        return self._with_words(f"not done in {seconds:g} s and killed")

    async def _run(self) -> EndCause:
        spawning = asyncio.ensure_future(
            self._guardian.spawn(replace(self._spec, stdout=self._words, stderr=self._words))
        )
        try:
            child = await asyncio.shield(spawning)
            return (await child.wait()).cause
        except asyncio.CancelledError:
            with suppress(SpawnError, GuardianLostError):
                await (await spawning).stop(
                    KILL_NOW
                )  # it may run already, though nobody has said so yet
            raise

    def _with_words(self, what: str) -> str:
        said = str(self._words)
        return f"{what}: {said}" if said else what
