-- Returns the records of some incarnations.
-- KEYS  the base keys
-- ARGV  `some` incarnation... | `newest` owner
-- Answers  {now_ms, back_ms, [incarnation, packed incarnation, deadline_ms or '', held] ...}
-- O(incarnations answered)
local K = base(KEYS)
local now = clock()
local back = presence(K.meta, now, 0, 0, false) or 0
local incs = {}
if ARGV[1] == 'newest' then
  incs[1] = newest(redis.call('HGET', K.names, ARGV[2]))
else
  for i = 2, #ARGV do
    incs[#incs + 1] = ARGV[i]
  end
end
local answer = { whole(now), whole(back) }
for _, inc in ipairs(incs) do
  local packed = redis.call('HGET', K.lives, inc)
  if packed then
    answer[#answer + 1] = inc
    answer[#answer + 1] = packed
    answer[#answer + 1] = redis.call('ZSCORE', K.due, inc) or ''
    answer[#answer + 1] = redis.call('HGET', K.counts, inc) or '0'
  end
end
return answer
