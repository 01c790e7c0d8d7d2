-- Whether the server takes beats, and its clock. It may answer and yet refuse every write: out of
-- memory, a full disk, a replica. To those who beat that is an absence like any other.
-- KEYS  1 due
-- Answers  now_ms
-- O(1); writes nothing: nobody has the empty name
local now = clock()
redis.call('ZADD', KEYS[1], 'XX', '0', '')
return whole(now)
