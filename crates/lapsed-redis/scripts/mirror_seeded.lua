-- Ends an attempt to seed: from now on the mirror answers, and everybody has a whole threshold to beat.
-- KEYS  1 meta  2 online  3 deactivated  4 versions
-- ARGV  1 the attempt
-- Answers  1, or 0 if data was lost since it began
-- O(1)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'seeding:' .. ARGV[1])
local incarnation = life_of(known[3])
local valid = known[4] and known[4] == incarnation and intact(KEYS, known[2])
if valid and known[1] ~= incarnation then
  redis.call('HSET', KEYS[1], 'seeded', incarnation, 'back', whole((clock())))
end
if known[4] then
  redis.call('HDEL', KEYS[1], 'seeding:' .. ARGV[1])
end
return valid and 1 or 0
