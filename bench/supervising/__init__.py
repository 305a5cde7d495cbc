"""The parts of bench/supervisor: `contenders` says who runs and how each is told, `stage` holds one
of them while it is measured, `proc` reads what the kernel says of it, `race` measures all of them,
`endurance` ours over many restarts, `tables` prints.
"""
