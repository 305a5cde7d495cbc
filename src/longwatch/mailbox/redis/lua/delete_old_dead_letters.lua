-- Delete a batch of dead letters that are older than the retention, and return how many. args:
-- limit, retention (in seconds).

allow_when_full()
return delete_old(args.limit)
