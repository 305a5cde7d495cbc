"""The parts of bench/supervisor: `contenders` has the supervisors and their settings,
`running_supervisor` holds one of them while it is measured, `proc` reads its figures from the
kernel, `race` measures all of them, `endurance` ours over many restarts, `tables` prints.
"""
