"""Pure decisions on the standard library alone: nothing here sleeps by itself, does I/O, logs or
starts a thread.
"""
