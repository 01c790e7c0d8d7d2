-- Records that the server was unreachable until now: every owner gets a whole threshold from now on.
-- KEYS  the base keys
-- Answers  now_ms
-- O(1)
local K = base(KEYS)
local now = clock()
redis.call('HSET', K.meta, 'back', whole(now))
return whole(now)
