-- Ends a term if it is still the current one. Its number stays, so that the next term has a larger one.
-- KEYS  the base keys
-- ARGV  1 number of the term
-- Answers  1, whether or not the term was ended
-- O(1)
local K = base(KEYS)
if redis.call('HGET', K.meta, 'term') == ARGV[1] then
  redis.call('HSET', K.meta, 'until', '0')
end
return 1
