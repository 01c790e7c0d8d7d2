-- How many jobs are in flight, and how many of them are due.
-- KEYS  the base keys, then: 12 index
-- ARGV  1 threshold_ms
-- Answers  {now, since when the server is back or 0, run, population, due, oldest deadline or '',
--   how many became due within the last threshold, how many that did so were taken,
--   how many are dated after the present}
-- O(log jobs)
local K = base(KEYS)
local index = KEYS[12]
local now = clock()
local threshold = tonumber(ARGV[1])
local back, run = presence(K.meta, now, 0, 0, false)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local function due_until(at)
  return redis.call('ZCOUNT', index, '-inf', string.format('%.3f', math.max(at, 0) / 1000))
    + redis.call('ZCOUNT', index, '100000000000', whole(at))
end
-- Only an owner that existed before can have been cut off.
if now >= back + threshold or due_until(back) == 0 then
  back = 0
end
local due, oldest = due_until(now - threshold), ''
if due > 0 then
  local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  local deadline = deadline_of(first, threshold)
  oldest = deadline and whole(deadline) or ''
end
local before = due > 0 and due_until(now - 2 * threshold) or 0
local ahead = 0
for _, range in ipairs(ranges_ahead(now)) do
  ahead = ahead + redis.call('ZCOUNT', index, range[1], range[2])
end
return { whole(now), whole(back), run, redis.call('ZCARD', index), due, oldest, due - before,
  whole(deaths_within(K.meta, now, threshold, threshold)), ahead }
