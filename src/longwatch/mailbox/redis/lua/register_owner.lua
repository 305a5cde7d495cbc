-- Register an owner of leases. args: owner, record (keys.lua, `register_owner`).

allow_when_full()
register_owner(args.owner, args.record)
