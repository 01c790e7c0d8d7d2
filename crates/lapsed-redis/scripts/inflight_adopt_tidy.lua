-- The end of a pass: the lock is let go if it is still ours, the application's keys live on, deaths of
-- workers that no longer count are forgotten.
-- KEYS  1 gc_lock  2 crashes  3 crashes by time, then the application's keys
-- ARGV  1 sweeper, or empty: none held the lock  2 crash_window_ms  3 TTL of the application's keys in s
--       4 rows
-- Answers  how many jobs' crashes were forgotten
-- O(rows * log crashes)
local now = clock()
renew({ unpack(KEYS, 4) }, tonumber(ARGV[3]))
if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) == lock_value(ARGV[1]) then
  redis.call('DEL', KEYS[1])
end
local old = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', whole(now - tonumber(ARGV[2])), 'LIMIT', 0, tonumber(ARGV[4]))
each('HDEL', KEYS[2], old)
each('ZREM', KEYS[3], old)
return #old
