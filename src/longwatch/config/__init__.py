"""Settings from a file, the environment and flags, with every fault reported at once."""
