-- The account, as one moment has it.
-- KEYS  1 meta  2 jobs  3 dead
-- ARGV  1 format
-- Answers  {entered, completed, queued, in flight, dead, dropped}; on queues of the application's
--          `queued` are those that were given back to them
-- O(1)
local n = redis.call('HMGET', KEYS[1], 'entered', 'completed', 'dropped', 'flying', 'returned')
for i = 1, 5 do
  n[i] = tonumber(n[i] or 0)
end
local dead = redis.call('ZCARD', KEYS[3])
local queued = n[5]
if ARGV[1] == 'own' then
  queued = redis.call('HLEN', KEYS[2]) - n[4] - dead
end
return { whole(n[1]), whole(n[2]), whole(queued), whole(n[4]), whole(dead), whole(n[3]) }
