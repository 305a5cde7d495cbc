-- Register an owner of leases. args: owner, incarnation, page.

allow_when_full()
redis.call('HSETNX', OWNERS, args.owner,
  cmsgpack.pack({args.incarnation, args.page or false, WALL_NOW}))
