"""Finds the runtime for a ContainerHost, each time the host needs one, and ends the service it
started.

The first runtime that answered is kept: another has other containers, and ours would all count as
removed. So the finder waits for a lost Docker or Podman socket, and starts its own service again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from longwatch.errors import RuntimeUnreachableError, UsageError
from longwatch.host.runtime_dir import runtime_directory
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.runtime import ContainerRuntime
from longwatch.supervisor.containers.runtime_detection import DetectedRuntime, detect_runtime
from longwatch.supervisor.socket_directory import SocketDirectory


class RuntimeFinder:
    """Connects to Docker or Podman, by `runtime`: `docker`, `podman` or `auto`. Used on one event
    loop.

    A `podman system service` that it started is used again while it lives. `close` ends the
    service; containers keep running.
    """

    def __init__(self, runtime: str, *, environ: Mapping[str, str] | None = None) -> None:
        self._runtime = runtime
        self._environ = os.environ if environ is None else environ
        self._found = DetectedRuntime()
        self._directory: SocketDirectory | None = None
        self._socket_path: str | None = None
        """The socket where the runtime answered first; None before that, and for a service of our
        own.
        """
        self._is_own = False

    async def connect(self) -> ContainerRuntime | str:
        """Return the runtime that answered first, or the reason why there is none now."""
        await self._found.close()
        self._found = DetectedRuntime()
        try:
            if self._socket_path is not None:
                api = await EngineApi.connect(self._socket_path)
                self._found = DetectedRuntime(api=api)
                return api
            self._found = await detect_runtime(
                self._runtime,
                self._environ,
                socket_directory=self._socket_directory(),
                config_directory=_config_directory(),
                only_own_service=self._is_own,
            )
        except RuntimeUnreachableError as error:
            return f"{error}; start the runtime again"
        except (UsageError, OSError) as error:
            return str(error)
        if self._found.service is not None:
            self._is_own = True
        elif self._found.api is not None:
            self._socket_path = self._found.api.socket_path
        return self._found.api or self._found.reason

    def child_pids(self) -> tuple[int, ...]:
        """Return the pid of the service that this finder started, if any."""
        return () if self._found.service is None else (self._found.service.pid,)

    async def close(self) -> None:
        """Close the connection and end the service. Idempotent."""
        await self._found.close()
        self._found = DetectedRuntime()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _socket_directory(self) -> Path:
        if self._directory is None:
            self._directory = SocketDirectory.create()
        return self._directory.path


def _config_directory() -> Path:
    """Return the directory that keeps the settings of a service as long as its containers may
    live.
    """
    directory = runtime_directory() / "podman"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
