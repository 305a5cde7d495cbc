"""Containers that stay up: agents in Docker or Podman, as targets of the supervisor.

The way of a container: `agent_registry` reads `agents.json` and the manifests into plans. A
`container_target` starts and adopts one container; `live_container` is one life of it, to its end.
`container_command` runs the commands of its probes, `container_logs` copies its output.
`container_host` holds the connection
to the runtime that all of them share: it passes events on, polls behind them, and says when the
runtime cannot be asked. `runtime` is the seam to Docker and Podman, `engine_api` the one that
speaks to them, `runtime_detection` finds it. `monitor` is all of it for code of your own.

Who owns a container: labels. `longwatch.owner` names the state directory whose supervisor made
it, `longwatch.name` its program, `longwatch.spec` a digest of what it was made from. A container
of the right name with another owner, or none, is never touched. One of ours that was made from
another spec is stopped with its grace, removed, and made anew at the next start.

States of the connection: `unknown` until the first list succeeded and whenever the runtime does
not answer, else `known`. While it is unknown no container counts as ended, no probe counts as
failed, and starts wait. Once it is known again one list says what ended meanwhile.

How an end is noticed: by a `die` event, at once; by the list of every 5 seconds, behind it; by
the list after a reconnect. Each leads to one inspection, which alone says how it ended. An end
that a stop from outside came before (`stop` of Podman, `kill` then `stop` of Docker) waits a
second (Podman may say so only after the end: then the start that is scheduled is given up), to tell
three cases apart: the container is gone: it was removed, and is made anew; it
runs again: it was restarted, and is adopted; it stays: a person stopped it, and it stays stopped.
"""
