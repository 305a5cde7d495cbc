"""The parts of bench/containers: `private_podman` has a Podman with a store of its own,
`monitor_process` is a container monitor that reports what it does, `running_monitor` holds it while
it is measured. `restarts`, `idle` and `probing` are the trials, and each prints its own table.
"""
