-- Reconciles what one incarnation refers to with the sessions there are and, if `act`, drops its references
-- to what is not there any more.
-- KEYS  the base keys, then: 12 what the incarnation refers to
--       then for each session three: session, ref_count, references of each incarnation
-- ARGV  1 `act` or `dry`  2 incarnation  then the ids
-- Answers  one letter a session: t referred to, d dropped, g the incarnation does not refer to it (any more)
-- O(sessions * log what the incarnation refers to)
local K = base(KEYS)
local act, inc, letters = ARGV[1] == 'act', ARGV[2], {}
for n = 3, #ARGV do
  local k = 4 + 3 * n
  local session, ref_count, refs = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local mine = tonumber(redis.call('HGET', refs, inc) or 0)
  local exists = redis.call('EXISTS', session) == 1
  if not redis.call('ZSCORE', KEYS[12], ARGV[n]) then
    letters[#letters + 1] = 'g'
  elseif exists and mine > 0 then
    letters[#letters + 1] = 't'
  else
    letters[#letters + 1] = 'd'
    if act then
      if not exists then
        forget_references(refs, ref_count, inc, mine)
      end
      local held = redis.call('HINCRBY', K.counts, inc, 0 - redis.call('ZREM', KEYS[12], ARGV[n]))
      if held <= 0 then
        redis.call('ZREM', K.ended, inc)
      end
    end
  end
end
return table.concat(letters)
