"""The runner: event streams in, agent runs out, nothing lost.

It connects to event sources (Server-Sent Events, or an MCP server), filters their events, and
stores them in one durable queue for each source. For each event it runs one agent process under a
deadline. Its state is in a SQL store, so a restart loses nothing.

The life of a stream event
    received    A connection parses it (`connection.py`, `sse_stream.py`, `mcp_stream.py`). It
                reconnects by fixed rules (`reconnect.py`).
    decided on  The intake reads it (`stream_event.py`), and filters it by severity and for
                duplicates (`event_filter.py`).
    queued      One transaction stores the event, its message in the mailbox `runner/NAME` and the
                last event id of the stream (`intake.py`, `event_writer.py`, `event_queue.py`). A
                crash before the commit makes the server send the event again. After the commit it
                is stored. The sweep (`queue_sweep.py`) ends events that wait too long or whose
                message was removed.
    claimed     The engine claims the messages of all sources, oldest first and in turn, within a
                cap for each source and one for all (`dispatch.py`).
    run         An agent process runs in its own workspace (`agent_run.py`, `workspace.py`), below a
                guardian, so that it dies with the runner.
    settled     One transaction writes how the run ended, settles the message, and gives the event
                its outcome (`dispatch.py`, `run_store.py`).

Invariants
    1. Every stored event has one outcome at the end: run, expired, filtered, dead-lettered or
       dropped. Null: it is queued or runs.
    2. An event is stored in the transaction that stores the last event id of its stream.
    3. Only the runner that holds the lease of a source writes its last event id
       (`source_lease.py`).
    4. A run is written before its process is spawned, with its pid after that. A runner that starts
       kills the processes of runs that an earlier runner has left.
    5. The values of an event enter no argv. They are in files and in the environment.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
