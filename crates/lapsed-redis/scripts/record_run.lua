-- Stores the `run_id` of the server, so that a server that lost it (FLUSHALL) can be distinguished from a new one.
-- KEYS  the base keys
-- Answers  now_ms
-- O(1)
local K = base(KEYS)
local now = clock()
presence(K.meta, now, 0, 0, true)
return whole(now)
