-- Who is there.
-- KEYS  the base keys
-- ARGV  1 threshold_ms  2 how many overdue owners are examined one by one, at most
-- Answers  {now, back, run, live, overdue, spared, died recently, held by the overdue owners,
--           oldest deadline or '', since when the server is back, if that is less than a threshold ago,
--           entries without an owner that were taken and became due within the last threshold, and within the last half of it}
-- O(log incarnations + the overdue owners); while a store-away grace runs: O(incarnations)
local K = base(KEYS)
local now = clock()
local back, run = presence(K.meta, now, 0, 0, false)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local threshold, most = tonumber(ARGV[1]), tonumber(ARGV[2])
if now >= back + threshold then
  back = 0
end
local since = back
local overdue, spared, held, oldest, cut_off = 0, 0, 0, nil, false
local past_due = redis.call('ZRANGEBYSCORE', K.due, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #past_due, 2 do
  local inc, deadline = past_due[i], tonumber(past_due[i + 1])
  local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
  if incarnation and due_at(deadline, incarnation.started, incarnation.ttl, back) > now then
    spared = spared + 1
  else
    overdue = overdue + 1
    oldest = oldest or deadline
    held = held + tonumber(redis.call('HGET', K.counts, inc) or 0)
  end
end
local ended = redis.call('ZRANGE', K.ended, 0, most - 1, 'WITHSCORES')
for i = 1, #ended, 2 do
  held = held + tonumber(redis.call('HGET', K.counts, ended[i]) or 0)
end
if ended[2] then
  oldest = math.min(oldest or tonumber(ended[2]), tonumber(ended[2]))
end
if back > 0 then
  for _, inc in ipairs(redis.call('ZRANGE', K.due, 0, most - 1)) do
    local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
    cut_off = cut_off or (incarnation ~= nil and incarnation.started < back)
  end
  if not cut_off then
    back = 0
  end
end
local died = redis.call('ZCOUNT', K.deaths, '(' .. whole(now - threshold), '+inf')
local live = redis.call('ZCARD', K.due) - overdue
return { whole(now), whole(back), run, live, overdue, spared, died, held, oldest and whole(oldest) or '',
  whole(since), whole(deaths_within(K.meta, now, threshold, threshold)),
  whole(deaths_within(K.meta, now, threshold, threshold / 2)) }
