"""Parses and builds the objects of the Docker Engine API: containers, events, frames of output.

No I/O: `engine_api` makes the requests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import (
    ContainerState,
    ContainerStatus,
    RuntimeAction,
    RuntimeEvent,
)

_STOP_TIMEOUT = 10
"""The grace in seconds of `docker stop` and `podman stop`; the default of both commands."""
_GO_DIRECTORY = 1 << 31
_STOP_CLEANUP_SECONDS = 0.75
"""The cleanup of a stop comes at most this many seconds after the end. The cleanup of a failed
start comes later.
"""
_ACTIONS = {action.value: action for action in RuntimeAction} | {"destroy": RuntimeAction.REMOVE}
_STATUSES = {
    "running": ContainerStatus.RUNNING,
    "restarting": ContainerStatus.RUNNING,
    "stopping": ContainerStatus.RUNNING,
    "paused": ContainerStatus.PAUSED,
}


class FrameReader:
    """Splits the stream in which a runtime mixes stdout (1) and stderr (2).

    A stream without frames, such as that of a terminal, passes through as stdout. It buffers at
    most 7 bytes.
    """

    _HEADER_BYTES = 8

    def __init__(self) -> None:
        self._header = b""
        self._stream = 1
        self._left = 0
        self._is_raw = False

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the output in this chunk as pairs of stream and bytes."""
        at = 0
        while at < len(chunk):
            if self._left or self._is_raw:
                end = len(chunk) if self._is_raw else at + self._left
                data = chunk[at:end]
                self._left -= 0 if self._is_raw else len(data)
                yield self._stream, data
                at += len(data)
            else:
                taken = chunk[at : at + self._HEADER_BYTES - len(self._header)]
                at += len(taken)
                self._header += taken
                yield from self._begin_frame()

    def _begin_frame(self) -> Iterator[tuple[int, bytes]]:
        header = self._header
        if header[:1] > b"\2" or header[1:4].strip(b"\0"):
            self._is_raw, self._stream = True, 1
            yield 1, header
        elif len(header) == self._HEADER_BYTES:
            self._stream = 2 if header[0] == 2 else 1  # noqa: PLR2004 - stderr
            self._left = int.from_bytes(header[4:])
            self._header = b""


class EventReader:
    """Parses the lines of the API's events. Not thread-safe.

    Podman 4 sends no `stop` event if a container obeys a stop in time: its own cleanup records the
    end first. `podman stop` then sends only one more cleanup. So a `cleanup` without a `die` counts
    as the stop, if no `stop` was sent. It must come soon after the end, because a failed start is
    cleaned up too, but later. A cleanup may come after the end of the next run, so ends and
    cleanups are counted.
    """

    def __init__(self) -> None:
        self._uncleaned: dict[str, int] = {}
        """By container: the number of ends without a cleanup so far."""
        self._died_at: dict[str, float] = {}
        """By container: when it last died, in seconds."""
        self._stopped: set[str] = set()

    def read(self, line: bytes) -> RuntimeEvent | None:
        """Parse the event in a line; None if it is of no interest or cannot be understood."""
        try:
            event = json.loads(line)
            if event.get("Type", "container") != "container":
                return None
            actor = event["Actor"]
            attributes = actor.get("Attributes") or {}
            container_id = str(actor["ID"])
            at = float(event.get("timeNano") or 0) / 1e9
            action = self._action(event["Action"], container_id, at)
            if action is None:
                return None
            return RuntimeEvent(
                action=action,
                id=container_id,
                name=str(attributes.get("name", "")),
                exit_code=event_exit_code(attributes) if action is RuntimeAction.DIE else None,
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return None

    def _action(self, name: str, container_id: str, at: float) -> RuntimeAction | None:
        action = _ACTIONS.get(name)
        if name == "cleanup" and self._is_extra_cleanup(container_id, at):
            action = RuntimeAction.STOP
        match action:
            case RuntimeAction.STOP:
                self._stopped.add(container_id)
            case RuntimeAction.START:
                self._stopped.discard(container_id)
            case RuntimeAction.DIE:
                self._uncleaned[container_id] = self._uncleaned.get(container_id, 0) + 1
                self._died_at[container_id] = at
            case RuntimeAction.REMOVE:
                self._uncleaned.pop(container_id, None)
                self._died_at.pop(container_id, None)
                self._stopped.discard(container_id)
        return action

    def _is_extra_cleanup(self, container_id: str, at: float) -> bool:
        """Return whether this cleanup is one more than there were ends, soon after the last end."""
        left = self._uncleaned.get(container_id, 0)
        if left:
            self._uncleaned[container_id] = left - 1
            return False
        died_at = self._died_at.get(container_id)
        is_soon = died_at is not None and at - died_at <= _STOP_CLEANUP_SECONDS
        return is_soon and container_id not in self._stopped


def creation_body(spec: ContainerSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    ports = {f"{port.container_port}/{port.protocol}": port for port in spec.ports}
    limit = {"Memory": spec.memory, "MemorySwap": spec.memory} if spec.memory else {}
    network = {"NetworkMode": spec.network} if spec.network else {}
    optional = {"Cmd": list(spec.command), "WorkingDir": spec.workdir, "User": spec.user}
    log_options = {"max-size": str(spec.log_max_bytes), "max-file": str(spec.log_files)}
    return {
        "Image": spec.image,
        "Labels": dict(labels),
        "Env": assignments(spec.env),
        "StopTimeout": _STOP_TIMEOUT,
        "ExposedPorts": {name: {} for name in ports},
        **{name: value for name, value in optional.items() if value},
        "HostConfig": {
            "Binds": [
                f"{bind.source}:{bind.target}:{'ro' if bind.read_only else 'rw'}"
                for bind in spec.binds
            ],
            "PortBindings": {
                name: [{"HostIp": port.host, "HostPort": str(port.host_port)}]
                for name, port in ports.items()
            },
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": log_options},
            **limit,
            **network,
        },
    }


def parse_listed(container: Mapping[str, Any]) -> ContainerState:
    return ContainerState(
        id=container["Id"],
        name=container["Names"][0].lstrip("/"),
        status=_status(container["State"]),
        labels=container["Labels"] or {},
    )


def parse_inspected(found: Mapping[str, Any]) -> ContainerState:
    state, config, network = found["State"], found["Config"], found.get("NetworkSettings") or {}
    status = _status(state["Status"])
    is_up = status is not ContainerStatus.STOPPED
    policy = (found.get("HostConfig") or {}).get("RestartPolicy") or {}
    return ContainerState(
        id=found["Id"],
        name=found["Name"].lstrip("/"),
        status=status,
        labels=config.get("Labels") or {},
        pid=int(state.get("Pid") or 0) if is_up else 0,
        exit_code=int(state.get("ExitCode") or 0),
        out_of_memory=bool(state.get("OOMKilled")),
        started_at=_wall_time(state.get("StartedAt")),
        finished_at=0.0 if is_up else _wall_time(state.get("FinishedAt")),
        image=config.get("Image") or "",
        restart_policy=policy.get("Name") or "no",
        address=_address(network),
        published_ports=_published_ports(network),
    )


def _status(text: str) -> ContainerStatus:
    return _STATUSES.get(text.lower(), ContainerStatus.STOPPED)


def _wall_time(text: str | None) -> float:
    """Parse the time in an answer; 0 for none, which the API writes as the year 1."""
    if not text or text.startswith("0001-"):
        return 0.0
    return datetime.fromisoformat(text).timestamp()


def _address(network: Mapping[str, Any]) -> str:
    """Return its address in the default network, or else in the first of its own that has one."""
    places = [network, *(network.get("Networks") or {}).values()]
    return next((place["IPAddress"] for place in places if place and place.get("IPAddress")), "")


def _published_ports(network: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    found = {}
    for name, bindings in (network.get("Ports") or {}).items():
        port, _, protocol = name.partition("/")
        if protocol == "tcp" and bindings:
            host = bindings[0].get("HostIp") or "0.0.0.0"  # noqa: S104 - reported by the runtime
            found[int(port)] = (host, int(bindings[0]["HostPort"]))
    return found


def event_exit_code(attributes: Mapping[str, Any]) -> int | None:
    """Return the exit code in an event: `exitCode` of Docker and newer Podman, `containerExitCode`
    of older Podman.
    """
    text = attributes.get("exitCode", attributes.get("containerExitCode"))
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def is_directory(encoded: str) -> bool:
    """Return whether the header describes a directory. Its mode has the bits of Go."""
    return bool(json.loads(base64.b64decode(encoded))["mode"] & _GO_DIRECTORY)


def assignments(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]
