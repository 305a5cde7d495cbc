"""The commands about running supervisors: find them, send requests, judge the responses.

Kept light, so that `longwatch status` is fast: it needs no event loop, and only one setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.suggest import did_you_mean
from longwatch.errors import (
    ConfigError,
    DeadlineExceededError,
    Fault,
    LongwatchError,
    TryAgainError,
    UsageError,
)
from longwatch.supervisor.client import (
    ControlResponse,
    NoAnswerError,
    ProcessWatch,
    send_request,
)
from longwatch.supervisor.supervisor_lock import (
    NotRunningError,
    RunningSupervisor,
    find_supervisors,
)

JsonObject = dict[str, Any]

CONFIG_FILE = "longwatch.toml"
STATE_DIRECTORY = ".longwatch"
QUERY_TIMEOUT = 10.0
"""Seconds to wait for the answer to a query."""
COMMAND_TIMEOUT = 3600.0
"""Seconds that a command may take that waits for programs to stop."""
SAMPLE_SECONDS = 0.3
"""Seconds over which the CPU share of programs is measured. The kernel counts in hundredths of a
second.
"""
_END_POLL_SECONDS = 0.02
_RUNNER_COMMANDS = frozenset({"status", "usage", "stop", "down"})
_SUPERVISOR_FACTS = ("command", "version", "pid", "guardian_pid", "started_at")
_CLEAN_ENDS = frozenset({"clean_exit", "intentional_signal", "stopped", "shutdown_complete"})


class RefusedError(LongwatchError):
    """The supervisor refused a request. It has the exit code of the response, and the whole
    response.
    """

    def __init__(self, response: ControlResponse) -> None:
        super().__init__(str(response.get("error", "the supervisor refused without a reason")))
        self.response = response
        self.exit_code = int(response.get("exit_code", LongwatchError.exit_code))


def state_directory(flag: str | None, config: Path | None, environ: Mapping[str, str]) -> Path:
    """The state directory of the supervisor, found as `longwatch up` finds it.

    In this order: the flag, LONGWATCH_STATE_DIR, the settings (relative to their file),
    `.longwatch` beside the settings.
    """
    chosen = flag or environ.get("LONGWATCH_STATE_DIR") or _configured_state_dir(config, environ)
    if chosen == "off":
        raise UsageError(
            "the state directory is off, so no supervisor can be found; name one with --state-dir"
        )
    return Path(chosen)


def request(  # noqa: PLR0913 - one argument a field of the request, and how long to wait
    state: Path,
    command: str,
    programs: Sequence[str] = (),
    *,
    everything: bool = False,
    ready: bool = False,
    timeout: float | None = None,
    response_timeout: float = QUERY_TIMEOUT,
) -> ControlResponse:
    """Request an action on these programs, or on all if `everything` is True.

    With several supervisors, each gets the programs that it has. Raises RefusedError if one
    refuses.
    """
    fields: JsonObject = {"do": command}
    if everything:
        fields["all"] = True
    if ready:
        fields["ready"] = True
    if timeout is not None:
        fields["timeout"] = timeout
    supervisors = _addressed(find_supervisors(state), command, everything=everything)
    responses = [
        _ask(
            supervisor,
            {**fields, "programs": list(names)} if names else fields,
            timeout=response_timeout,
            may_be_gone=len(supervisors) > 1,
        )
        for supervisor, names in _share_names(supervisors, programs, response_timeout).items()
    ]
    return _merge([response for response in responses if response is not None])


def status(state: Path, programs: Sequence[str]) -> ControlResponse:
    """The state of these programs, or of all, with their CPU and memory. CPU is measured over
    `SAMPLE_SECONDS`, in percent of one core.
    """
    before = _usages(state, programs)
    if before:
        SystemClock().wait(Wakeup(), SAMPLE_SECONDS)
    response = request(state, "status", programs)
    after = _usages(state, programs) if before else {}
    for program in response["programs"]:
        key = (program["name"], program["pid"])
        program.update(_usage_facts(before.get(key), after.get(key)))
    return response


def workers(state: Path, *, response_timeout: float = QUERY_TIMEOUT) -> ControlResponse:
    """The worker processes of all supervisors, and the stores that these use, each once. URLs are
    complete; mask them before they are shown. A supervisor that refuses the command has none.
    """
    answers = [_ask_workers(supervisor, response_timeout) for supervisor in find_supervisors(state)]
    stores = {(each["url"], each["kind"]): each for answer in answers for each in answer["stores"]}
    return {
        "ok": True,
        "workers": [worker for answer in answers for worker in answer["workers"]],
        "stores": list(stores.values()),
    }


def _ask_workers(supervisor: RunningSupervisor, timeout: float) -> ControlResponse:
    with suppress(RefusedError):  # an older version
        answer = _ask(supervisor, {"do": "workers"}, timeout=timeout, may_be_gone=True)
        if answer is not None:
            return answer
    return {"workers": [], "stores": []}


def shut_down(state: Path, *, timeout: float) -> list[RunningSupervisor]:
    """Stop all supervisors of the state directory and wait until they have ended; returns them.
    Raises NotRunningError if there is none, DeadlineExceededError if one has not ended in time.
    """
    try:
        supervisors = find_supervisors(state)
    except NotRunningError:
        raise NotRunningError(f"no longwatch process runs in {state}") from None
    deadline = Deadline.after(timeout, SystemClock())
    with ExitStack() as undo:
        watches = [undo.enter_context(closing(ProcessWatch(each.socket))) for each in supervisors]
        answers = [_ask(each, {"do": "down"}, may_be_gone=True) for each in supervisors]
        for supervisor, watch, answer in zip(supervisors, watches, answers, strict=True):
            has_heard = answer is not None
            _wait_for_end(
                supervisor, watch, deadline if has_heard else deadline.capped(QUERY_TIMEOUT)
            )
    return supervisors


def _wait_for_end(supervisor: RunningSupervisor, watch: ProcessWatch, deadline: Deadline) -> None:
    """Wait until the supervisor has released the directory. A `longwatch` process ends then; a
    user's process that embeds a supervisor goes on.
    """
    while supervisor.is_running and not deadline.expired:
        deadline.clock.wait(Wakeup(), _END_POLL_SECONDS)
    if supervisor.is_running or (supervisor.command and not watch.wait(deadline)):
        raise DeadlineExceededError(
            f"pid {supervisor.pid} has not ended yet; look with `longwatch status`, or end it with "
            f"`kill {supervisor.pid}`"
        )


def _ask(
    supervisor: RunningSupervisor,
    fields: Mapping[str, object],
    *,
    timeout: float = QUERY_TIMEOUT,
    may_be_gone: bool = False,
) -> ControlResponse | None:
    """The response of one supervisor; None if it has ended and that is allowed here. Raises
    RefusedError if it refuses.
    """
    try:
        response = send_request(supervisor.socket, fields, timeout=timeout)
    except NoAnswerError:
        if may_be_gone:
            return None
        raise
    if not response.get("ok"):
        raise RefusedError(response)
    return response


def _addressed(
    supervisors: list[RunningSupervisor], command: str, *, everything: bool
) -> list[RunningSupervisor]:
    """The supervisors that accept a command: only `longwatch up` reloads, and a runner does not
    start programs.
    """
    if command == "reload":
        _require_file(supervisors[0])
        return supervisors[:1]
    if everything and command not in _RUNNER_COMMANDS:
        return [each for each in supervisors if each.command != "runner"] or supervisors
    return supervisors


def _require_file(supervisor: RunningSupervisor) -> None:
    """Raise RefusedError for a command that has no configuration file to read again."""
    if supervisor.command in {"", "up"}:
        return
    cure = (
        "stop it and start it again"
        if supervisor.command == "runner"
        else "use `longwatch restart NAME`"
    )
    error = f"`longwatch {supervisor.command}` has no configuration file to read again; {cure}"
    raise RefusedError({"ok": False, "error": error, "exit_code": UsageError.exit_code})


def _share_names(
    supervisors: Sequence[RunningSupervisor], names: Sequence[str], timeout: float
) -> dict[RunningSupervisor, Sequence[str]]:
    """The names for each supervisor that has some of these programs. A name that several
    supervisors have goes to each of them.
    """
    if len(supervisors) == 1 or not names:
        return dict.fromkeys(supervisors, names)
    known = {supervisor: _known_names(supervisor, timeout) for supervisor in supervisors}
    every = {name for found in known.values() for name in found}
    for name in names:
        if name not in every:
            listed = f"there are: {', '.join(sorted(every))[:300]}"
            raise UsageError(f"no program {name!r}; {did_you_mean(name, every, default=listed)}")
    shares = {each: [name for name in names if name in known[each]] for each in supervisors}
    return {each: share for each, share in shares.items() if share}


def _known_names(supervisor: RunningSupervisor, timeout: float) -> set[str]:
    """The names of a supervisor's programs, and of their groups."""
    asked = _ask(supervisor, {"do": "status"}, timeout=timeout, may_be_gone=True)
    response = asked or {"programs": []}
    return {
        name
        for program in response["programs"]
        for name in (program["name"], program.get("group"))
        if name
    }


def _merge(responses: Sequence[ControlResponse]) -> ControlResponse:
    """Merge the responses of several supervisors: the facts of the first one, the facts of each in
    `supervisors`, and all programs.
    """
    if not responses:
        raise TryAgainError("everything that ran has just ended; look with `longwatch status`")
    merged = dict(responses[0])
    if "state_dir" in merged:
        merged["supervisors"] = [
            {key: each.get(key) for key in _SUPERVISOR_FACTS} for each in responses
        ]
        for response in responses:
            for program in response["programs"]:
                program["supervisor"] = response["pid"]
    merged["programs"] = [
        program for response in responses for program in response.get("programs", ())
    ]
    return merged


def _usages(state: Path, names: Sequence[str]) -> dict[tuple[str, int], JsonObject]:
    """The CPU time that running programs have used, by name and pid; empty if a supervisor does not
    know it.
    """
    try:
        programs = request(state, "usage", names)["programs"]
    except RefusedError:
        return {}
    return {(each["name"], each["pid"]): each for each in programs if "cpu_seconds" in each}


def _usage_facts(before: JsonObject | None, after: JsonObject | None) -> JsonObject:
    latest = after or before or {}
    facts = {key: latest.get(key) for key in ("processes", "cpu_seconds", "memory_bytes")}
    share = None
    if before and after and before["cpu_seconds"] is not None and after["cpu_seconds"] is not None:
        passed = after["measured_at"] - before["measured_at"]
        used = max(after["cpu_seconds"] - before["cpu_seconds"], 0.0)
        share = round(100 * used / passed, 1) if passed > 0 else None
    return {"cpu_percent": share, **facts}


def is_as_desired(program: JsonObject) -> bool:
    """Whether a program is in its desired state: up, stopped on purpose, or ended without a
    failure.
    """
    ended = program["last_end"] or {}
    ended_well = program["state"] == "ended" and ended.get("verdict") in _CLEAN_ENDS
    return program["desired"] == "stopped" or bool(program["up"]) or ended_well


def _configured_state_dir(config: Path | None, environ: Mapping[str, str]) -> str:
    """The state directory of the settings, even if other settings are faulty; the default without
    settings.
    """
    named = config or environ.get("LONGWATCH_CONFIG")
    path = Path(named or CONFIG_FILE)
    if not named and not path.exists():
        return STATE_DIRECTORY
    from longwatch.config.tomlfile import read_toml  # noqa: PLC0415 - needed only with a file

    table, faults = read_toml(path)
    value = table.get("state_dir", STATE_DIRECTORY)
    if not isinstance(value, str) or not value:
        faults.append(Fault(f"{path}: state_dir", "must be text that is not empty"))
    if faults:
        raise ConfigError(*faults)
    return "off" if value == "off" else str(path.parent / str(value))
