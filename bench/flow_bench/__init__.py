"""The parts of bench/flow: `trials` runs the contenders, `rows` measures renewals and sweeps
over many rows, `explaining` explains executions of large graphs.
"""
