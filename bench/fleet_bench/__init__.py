"""Many idle processes beside one server: what they ask of it, and what a message costs them.

`bench/fleet.py` runs each part in two source trees, an earlier one and this one. `trees.py` makes
them. `measure.py` is the program that runs in a tree, and prints what the part measured.
"""
