-- The end of a pass: the lock is let go if it is still ours, the application's keys live on, deaths of
-- workers that no longer count are forgotten. Heartbeats of the future become heartbeats of now: their jobs
-- are alive for one threshold from here on, and not until that date has passed.
-- KEYS  1 gc_lock  2 crashes  3 crashes by time  4 index, then the application's keys
-- ARGV  1 sweeper, or empty: none held the lock  2 crash_window_ms  3 TTL of the application's keys in s
--       4 rows  5 `date` if heartbeats may be dated anew, or empty
-- Answers  how many heartbeats were dated anew
-- O(rows * (log crashes + log jobs))
--
-- Who can come in between: nobody, it is one script. A heartbeat that the application has sent since is
-- judged as it is now; one that it sends later replaces this one.
local now, rows = clock(), tonumber(ARGV[4])
renew({ unpack(KEYS, 5) }, tonumber(ARGV[3]))
if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) == lock_value(ARGV[1]) then
  redis.call('DEL', KEYS[1])
end
local old = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', whole(now - tonumber(ARGV[2])), 'LIMIT', 0, rows)
each('HDEL', KEYS[2], old)
each('ZREM', KEYS[3], old)
local dated = {}
if ARGV[5] == 'date' and redis.acl_check_cmd('ZADD', KEYS[4], '1', 'x') then
  for _, range in ipairs(ranges_ahead(now)) do
    local ahead = redis.call('ZRANGEBYSCORE', KEYS[4], range[1], range[2], 'WITHSCORES', 'LIMIT', 0, rows)
    for i = 1, #ahead, 2 do
      dated[#dated + 1], dated[#dated + 2] = now_as(ahead[i + 1], now), ahead[i]
    end
  end
  each('ZADD', KEYS[4], dated)
end
return #dated / 2
