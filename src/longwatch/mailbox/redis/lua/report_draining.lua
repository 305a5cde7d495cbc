-- Store whether an owner drains. args: owner, is_draining, record (none if the caller has not
-- registered the owner). An owner that was deleted is registered again, if its record is known.

allow_when_full()
if args.record then register_owner(args.owner, args.record) end
local packed = redis.call('HGET', OWNERS, args.owner)
if not packed then return 0 end
local record = cmsgpack.unpack(packed)
record[5] = args.is_draining
redis.call('HSET', OWNERS, args.owner, cmsgpack.pack(record))
return 1
