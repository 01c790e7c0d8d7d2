-- Notes which life of the server this is, so that its forgetting it can be told from never having
-- known it.
-- KEYS  the base keys
-- Answers  now_ms
-- O(1)
local K = base(KEYS)
local now = clock()
presence(K.meta, now, 0, 0, true)
return whole(now)
