-- How many are online, and some of those of them that are deactivated: of the smaller of both sets a page.
-- KEYS  1 meta  2 online  3 deactivated  4 versions
-- ARGV  1 cursor  2 about how many  3 which set to go through (2 or 3), or empty: the smaller one
-- Answers  {online, deactivated in this page, cursor, which set}; nil if the mirror is not seeded
-- O(members of the page)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses')
if not is_seeded(KEYS, known) then
  return false
end
local online, off = redis.call('SCARD', KEYS[2]), redis.call('SCARD', KEYS[3])
local which = tonumber(ARGV[3]) or (online < off and 2 or 3)
local cursor, ids = members(KEYS[which], ARGV[1], ARGV[2])
local both = 0
for _, is in ipairs(every('SMISMEMBER', KEYS[5 - which], ids)) do
  both = both + is
end
return { whole(online), whole(both), cursor, whole(which) }
