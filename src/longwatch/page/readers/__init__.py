"""What views read from stores: small frozen records, bounded in number and size.

Every function gets an open store and blocks on it; the views call them in the thread of the store.
None of them creates a file, a table or a mailbox. Bodies, values and outputs are cut, with their
full size, and secrets in them are masked.
"""
