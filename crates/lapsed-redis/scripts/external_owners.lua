-- Owners that beat without lapsed: who of them is past the deadline that was last read off its
-- heartbeat, and those whose heartbeat is there go on.
-- KEYS  the base keys, then for `refile`: 12... the heartbeat of each
-- ARGV  `list` limit | `refile` incarnation...
-- Answers  to `list` {incarnation, owner} ...; to `refile` how many go on
-- O(limit * log lives)
local K = base(KEYS)
local now = clock()
if ARGV[1] == 'list' then
  local answer = {}
  for _, inc in ipairs(redis.call('ZRANGEBYSCORE', K.due, '-inf', whole(now), 'LIMIT', 0, ARGV[2])) do
    local life = read_life(redis.call('HGET', K.lives, inc))
    if life and life.external then
      answer[#answer + 1] = inc
      answer[#answer + 1] = life.name
    end
  end
  return answer
end
local on = 0
for i = 2, #ARGV do
  local life = read_life(redis.call('HGET', K.lives, ARGV[i]))
  local good = life and good_until(now, redis.call('PTTL', KEYS[10 + i]), life.ttl)
  if good and life.external and life.ending == '-' then
    revive(K, ARGV[i], life, good)
    on = on + 1
  end
end
return on
