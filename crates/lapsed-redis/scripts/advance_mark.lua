-- Moves a mark (a stored position) forward, never back.
-- KEYS  1 the hash of notes
-- ARGV  1 the mark  2 where to: digits without leading zeros, compared as such (Lua's numbers end at 2^53)
-- Answers  the position of the mark after the call
-- O(1)
local field, to = 'mark:' .. ARGV[1], ARGV[2]
local stood = redis.call('HGET', KEYS[1], field)
if stood and (#stood > #to or (#stood == #to and stood >= to)) then
  return stood
end
redis.call('HSET', KEYS[1], field, to)
return to
