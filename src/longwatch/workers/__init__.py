"""The parent of worker processes: renews their leases, restarts stalled ones, reclaims their
rows.
"""
