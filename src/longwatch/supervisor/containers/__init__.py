"""Keeps containers up: agents in Docker or Podman, as targets of the supervisor.

`agent_registry` reads `agents.json` and the manifests into plans. A `container_target` starts and
adopts one container, and `live_container` is one run of it. `container_command` runs the commands
of its probes, and `container_logs` copies its output. `container_host` holds the connection to the
runtime, which all containers share: it passes events on, polls as a fallback, and knows whether the
runtime answers. `runtime` is the interface to Docker and Podman, `engine_api` implements it, and
`runtime_detection` finds a runtime. `monitor` combines all parts for use from Python.

Labels show the owner of a container. `longwatch.owner` names the state directory whose supervisor
created it, `longwatch.name` its program, `longwatch.spec` the digest of its spec. A container of
the right name with another owner, or none, is never touched. If a container of ours was created
from another spec, it is stopped with its grace, removed, and created anew at the next start.

The connection is `unknown` until the first list succeeded and whenever the runtime does not answer,
else `known`. While it is unknown, no container counts as ended, no probe counts as failed, and
starts wait. Once it is known again, one list shows which containers ended meanwhile.

An end is noticed by a `die` event, by the list every 5 seconds, or by the list after a reconnect.
Each leads to one inspection, which alone decides how the container ended. If a stop from outside
came before the end (`stop` of Podman, `kill` then `stop` of Docker), the decision waits a second.
Podman may report the stop only after the end: then the scheduled start is cancelled. After that
second, a container that is gone was removed, and is created anew. A container that runs again was
restarted, and is adopted. Any other was stopped by a person, and stays stopped.
"""
