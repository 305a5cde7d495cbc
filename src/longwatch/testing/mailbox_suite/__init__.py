"""The checks of `longwatch.testing.check_mailbox`, one file for each subject.

Each check is a function whose name is its claim.

harness             tools of a check: its own mailboxes, a clock that can be moved, assertions
send_checks         send, send_many, bodies, delays, de-duplication, validation, max_size
header_checks       headers, through retries, dead letters and replay
transaction_checks  sends and settlements that commit with the caller's own work
receive_checks      receive and the end of its wait; acknowledge, nack, replies; close
admin_checks        counts, cancel, pause, purge, peek
lease_checks        fencing, the clock of leases, renewal, order
retry_checks        failures, crashes, releases, beat pages, undecodable bodies, retries
blame_checks        losses, suspects, the budgets of a mailbox, owners that drain, clock steps
dead_letter_checks  dead letters and expiry
concurrency_checks  threads and processes that send and receive at once, and a killed process
model_checks        compares a mailbox with a simple model by a hypothesis state machine
                    (state_machine)
"""
