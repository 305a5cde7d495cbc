-- Enter an owner of leases. asked: owner, incarnation, page.

begin_even_if_full()
redis.call('HSETNX', OWNERS, asked.owner, cmsgpack.pack({asked.incarnation, asked.page or false, WALL_NOW}))
