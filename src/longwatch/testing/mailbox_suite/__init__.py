"""The checks behind `longwatch.testing.check_mailbox`, one file a subject; each check is a function
whose name is its claim.

bench        what a check works with: mailboxes of its own, time that can be made to pass, ways to
             say what is expected
sending      send, send_many, bodies, delays, de-duplication, bounds, room
transactions sends and settlements that commit with the caller's own work
receiving    receive and what ends its wait; acknowledge, nack, replies; close
managing     counts, cancel, pause, purge, peek
leases       fencing, whose clock counts, extending, order
blame        the four counters, poison, beat pages, bodies that cannot be read, retries
endings      dead letters and expiry
crowds       threads that send and receive at once
processes    the same with processes, and one killed with -9
model        a hypothesis state machine beside a simple model
"""
