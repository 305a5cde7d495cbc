"""The status page: a process of its own that shows a state directory and its stores to a browser.

The process asks and never decides. It sends requests to the control sockets of the state directory
(`app.control`), reads `logs/watchdog.log` and the logs of programs (`app.log_reader`), and queries
the stores that the settings or the workers name. Its crash touches nothing else. aiohttp and jinja2
are imported in this package alone, and only when the page runs.

Threads. The main thread runs the event loop with the HTTP server and never blocks on a file, a
socket of a supervisor or a store. Views and actions run in daemon threads, in two small pools
(`pool`), so that slow actions hold up no view. `page-history` follows the log of events
(`history`). Each store has a thread of its own (`stores`), so a store that hangs holds up its own
queries only. Nothing joins these threads: the process ends within a second of SIGTERM, whatever
they do.

A request passes these steps, all in `server`:

    access    which requests are allowed: host, origin, token (`access`, decisions without I/O)
    route     a path to a view or an action (`routes`, a table)
    view      the facts, from `PageData`, in the pool and under a timeout (`views`)
    render    facts to HTML by a template (`rendering`, everything escaped)

Access. Every request names an allowed host, else 421. A request from another site is refused
with 403; only a link with the token may come from elsewhere. The token is in
`STATE/page.token`, readable by its user alone. A browser exchanges it once for a cookie, other
clients send it as a bearer token, all others get 401. An action is a POST with a second token,
bound to its path, and runs after a confirmation (`action_runner`). Each action is an event,
`page_action_taken`.

Live updates. A template marks sections as live. `GET /live?path=…` is a stream of those sections
of this path whose HTML has changed (`live`, `live_streams`). A path that is open in many browsers
is rendered once for all of them, soon after the log of events has grown, else every two seconds. A
client keeps only the newest HTML of each section, so a client that does not read costs a bounded
amount of memory; it is disconnected after a while, and no other client waits for it. Without
JavaScript every page works by links and forms.

Failures, and what the page shows:

    no supervisor answers      the reason, since when, and the last known state, marked as old
    a store does not answer    which one, since when; the other parts work
    a store cannot be opened   the same: a faulty URL, a missing extra, a file that is no database
    a disk is full             the overview names it among what is unhealthy
    a view takes too long      503 and what it waits for
    a huge log                 its end, from the last blocks of the file
    too many live clients      503 for the stream; the page works without it
    the page ends              browsers show that they are not connected, and connect again
"""
