"""The parts of bench/queues: `environments` and `servers` make the ground, `contenders` says who
runs, `trial` runs one of them, `figures` measures our backends more closely, `fsyncs` and `wal`
count what a message costs below, `tables` prints.
"""
