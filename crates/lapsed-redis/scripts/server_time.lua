-- Returns the clock of the server that holds these keys, in milliseconds.
-- KEYS  1 meta
-- Answers  now_ms
-- O(1)
local now = clock()
return whole(now)
