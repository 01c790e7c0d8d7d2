-- The server's clock, from the very server that holds these keys.
-- KEYS  1 meta
-- Answers  now_ms
-- O(1)
local now = clock()
return whole(now)
