"""The parts of bench/runtime.py."""
