"""The parent of worker processes: renews their leases, restarts stalled ones, reclaims their
rows. It also receives the events and metrics of the other Longwatch programs.
"""
