-- Jobs, and the incarnations that hold them: one by its id, or a page of the dead letters.
-- KEYS  the base keys, then: 12 jobs  13 dead
-- ARGV  `one` id | `dead` after, or empty  limit
-- Answers  {now_ms, back_ms, [id, record, packed incarnation or '', deadline_ms or ''] a job}
-- O(log dead letters + what is answered)
local K = base(KEYS)
local now = clock()
local back = presence(K.meta, now, 0, 0, false) or 0
local ids = { ARGV[2] }
if ARGV[1] == 'dead' then
  local after = ARGV[2] == '' and '-' or '(' .. ARGV[2]
  ids = redis.call('ZRANGEBYLEX', KEYS[13], after, '+', 'LIMIT', 0, ARGV[3])
end
local answer, records = { whole(now), whole(back) }, every('HMGET', KEYS[12], ids)
for i, id in ipairs(ids) do
  if records[i] then
    local inc = string.match(records[i], '^f:%d+:(%d+):')
    answer[#answer + 1] = id
    answer[#answer + 1] = records[i]
    answer[#answer + 1] = inc and redis.call('HGET', K.lives, inc) or ''
    answer[#answer + 1] = inc and redis.call('ZSCORE', K.due, inc) or ''
  end
end
return answer
