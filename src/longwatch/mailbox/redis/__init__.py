"""Mailboxes on Redis: the store, the backend, Lua scripts, and the transport."""
