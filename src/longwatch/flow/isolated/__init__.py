"""Runs an attempt in a process of its own: the parent side, the child side, and the channel."""
