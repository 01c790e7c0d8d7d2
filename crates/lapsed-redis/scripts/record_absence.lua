-- Records that the server was unreachable until now, if others agree: every owner gets a whole threshold from now on.
-- KEYS  the base keys
-- ARGV  1 for how many ms the caller could not reach the server, although it did not stand still itself, or how far the
--       server's clock went meanwhile, if it was set forward; empty: the time that was recorded last lies in the future, so
--       that the record has to be made anew in any case
-- Answers  {now_ms, 1 if it was recorded, else 0}
-- O(1)
--
-- The caller has probed the server just before. If somebody noted that it reached the server while the caller was
-- waiting, and no silence of all that was longer than the gap ended meanwhile, then it was the caller's own
-- fault, and nobody else has to wait for it. Otherwise the server was away. After the clock was set forward, the first
-- probe of anybody ends such a silence (`quiet`), because all that was noted before is older than the gap.
local K = base(KEYS)
local now = clock()
local waited = tonumber(ARGV[1])
local noted = redis.call('HMGET', K.meta, 'contact', 'quiet')
local contact, quiet = tonumber(noted[1] or 0), tonumber(noted[2] or 0)
if waited and contact > now - waited and quiet < now - waited then
  return { whole(now), 0 }
end
redis.call('HSET', K.meta, 'back', whole(now))
return { whole(now), 1 }
