-- Gives the term back, if it is still the current one. The number stays, so that the next is larger.
-- KEYS  the base keys
-- ARGV  1 number of the term
-- O(1)
local K = base(KEYS)
if redis.call('HGET', K.meta, 'term') == ARGV[1] then
  redis.call('HSET', K.meta, 'until', '0')
end
return 1
