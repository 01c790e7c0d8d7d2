-- Owners that write their heartbeat key without lapsed. `list` returns those whose last known deadline is
-- over; `refile` gives those whose heartbeat key still exists a new deadline.
-- KEYS  the base keys, then for `refile`: 12... the heartbeat of each
-- ARGV  `list` limit | `refile` incarnation...
-- Answers  to `list` {incarnation, owner} ...; to `refile` how many got a new deadline
-- O(limit * log incarnations)
local K = base(KEYS)
local now = clock()
if ARGV[1] == 'list' then
  local answer = {}
  for _, inc in ipairs(redis.call('ZRANGEBYSCORE', K.due, '-inf', whole(now), 'LIMIT', 0, ARGV[2])) do
    local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
    if incarnation and incarnation.external then
      answer[#answer + 1] = inc
      answer[#answer + 1] = incarnation.name
    end
  end
  return answer
end
local on = 0
for i = 2, #ARGV do
  local incarnation = read_incarnation(redis.call('HGET', K.lives, ARGV[i]))
  local good = incarnation and good_until(now, redis.call('PTTL', KEYS[10 + i]), incarnation.ttl)
  if good and incarnation.external and incarnation.ending == '-' then
    revive(K, ARGV[i], incarnation, good)
    on = on + 1
  end
end
return on
