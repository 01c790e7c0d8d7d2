-- Checks that the server accepts heartbeats, and returns its clock. A server can answer and yet refuse every
-- write: out of memory, disk full, a replica, a slot that is being moved. For owners this is an absence, so
-- the probe calls the command of a heartbeat on the keys of a heartbeat. While a slot moves, a call that
-- names a key that does not exist (an expired heartbeat) is refused.
-- KEYS  1 due  2 lives  3 names  4 a key that is never there
-- Answers  now_ms
-- O(1); writes nothing: nobody has the empty name
local now = clock()
redis.call('ZADD', KEYS[1], 'XX', '0', '')
return whole(now)
