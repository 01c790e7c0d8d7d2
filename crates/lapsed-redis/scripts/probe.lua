-- Whether the server takes beats, and its clock. It may answer and yet refuse every write: out of
-- memory, a full disk, a replica, a slot that is on its way to another node. To those who beat that is
-- an absence like any other, so this calls the command of a beat and names its keys. While a slot
-- moves, whoever names one that is not there (a heartbeat that has run out) is turned away.
-- KEYS  1 due  2 lives  3 names  4 a key that is never there
-- Answers  now_ms
-- O(1); writes nothing: nobody has the empty name
local now = clock()
redis.call('ZADD', KEYS[1], 'XX', '0', '')
return whole(now)
