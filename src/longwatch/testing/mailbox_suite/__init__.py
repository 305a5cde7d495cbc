"""The checks behind `longwatch.testing.check_mailbox`, one file a subject; each check is a function
whose name is its claim.

harness             what a check works with: mailboxes of its own, a clock that can be moved,
                    ways to say what is expected
send_checks         send, send_many, bodies, delays, de-duplication, validation, max_size
transaction_checks  sends and settlements that commit with the caller's own work
receive_checks      receive and what ends its wait; acknowledge, nack, replies; close
admin_checks        counts, cancel, pause, purge, peek
lease_checks        fencing, whose clock counts, renewal, order
retry_checks        failures, crashes, releases, beat pages, undecodable bodies, retries
blame_checks        losses, suspects, the budgets of a mailbox, owners that drain, clock steps
dead_letter_checks  dead letters and expiry
concurrency_checks  threads and processes that send and receive at once, and one killed with -9
model_checks        a hypothesis state machine (state_machine) beside a simple model
"""
