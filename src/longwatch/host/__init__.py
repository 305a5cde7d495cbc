"""Building blocks of one process: the loop thread, services, the periodic loop, shutdown, and
children under the guardian.
"""
