"""Decisions on the standard library alone: no code here does I/O, logs, starts a thread or sleeps
by itself.
"""
