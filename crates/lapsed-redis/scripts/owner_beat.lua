-- A heartbeat: moves the deadline of an incarnation to now + its TTL.
-- KEYS  1 lives  2 names  3 due  4 heartbeat (KEYS 1 again: none)
-- ARGV  1 owner  2 incarnation, or empty for the newest
-- Answers  {incarnation, deadline_ms, now_ms, ttl_ms}; {'unknown'} for a name never seen;
--          {'stranger'} for an incarnation that is not that owner's; {'ended', incarnation}
-- O(log incarnations)
local inc = ARGV[2]
if inc == '' then
  inc = newest(redis.call('HGET', KEYS[2], ARGV[1]))
  if not inc then
    return { 'unknown' }
  end
end
local incarnation = read_incarnation(redis.call('HGET', KEYS[1], inc))
if not incarnation or incarnation.name ~= ARGV[1] then
  return { 'stranger' }
end
if incarnation.ending ~= '-' then
  return { 'ended', inc }
end
local now = clock()
local deadline = now + incarnation.ttl
redis.call('ZADD', KEYS[3], 'GT', whole(deadline), inc)
if KEYS[4] ~= KEYS[1] then
  redis.call('SET', KEYS[4], inc, 'PX', whole(incarnation.ttl))
end
return { inc, whole(deadline), whole(now), whole(incarnation.ttl) }
