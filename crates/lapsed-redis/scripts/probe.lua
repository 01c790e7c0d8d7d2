-- Checks that the server accepts heartbeats, and returns its clock. A server can answer and yet refuse every
-- write: out of memory, disk full, a replica, a slot that is being moved. For owners this is an absence, so
-- the probe calls the command of a heartbeat on the keys of a heartbeat. While a slot moves, a call that
-- names a key that does not exist (an expired heartbeat) is refused.
-- For a process that sweeps it also records when any process last reached the server (`contact`), and the last time that none did for longer
-- than the gap (`quiet`: when that ended), by which `record_absence` distinguishes an absence of the server from a
-- fault of one client.
-- KEYS  1 due  2 lives  3 names  4 a key that is never there  5 meta
-- ARGV  1 gap_ms  2 how often to note it at most, in ms; empty: writes nothing, for a process that has only read so
--       far (a dry run, `check`), or that has just missed the server itself
-- Answers  now_ms
-- O(1); writes at most once in an interval, however many clients there are
local now = clock()
local gap = tonumber(ARGV[1])
redis.call('ZADD', KEYS[1], 'XX', '0', '')
local interval = tonumber(ARGV[2])
if not interval then
  return whole(now)
end
local contact = tonumber(redis.call('HGET', KEYS[5], 'contact') or 0)
if contact > 0 and now - contact > gap then
  redis.call('HSET', KEYS[5], 'contact', whole(now), 'quiet', whole(now))
elseif now - contact >= interval or contact > now then
  redis.call('HSET', KEYS[5], 'contact', whole(now))
end
return whole(now)
