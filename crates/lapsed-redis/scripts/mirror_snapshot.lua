-- The shared snapshot, or whose turn it is to make it.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 snapshot
-- ARGV  1 how long a turn lasts, ms
-- Answers  {'there', available (1), count}, {'yours', turn} or {'theirs'}; nil if the mirror is not seeded
-- O(1)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'turn')
if not is_seeded(KEYS, known) then
  return false
end
local text = redis.call('GET', KEYS[5])
if text then
  -- Anybody may have written it: what cannot be understood is not there.
  local fine, made = pcall(cjson.decode, text)
  if fine and type(made) == 'table' and type(made.available) == 'boolean' and type(made.count) == 'number'
    and made.count >= 0 and made.count < 1e15 then
    return { 'there', made.available and '1' or '0', whole(math.floor(made.count)) }
  end
end
local now, us = clock()
local until_ms = string.match(known[4] or '', ':(%d+)$')
if until_ms and now < tonumber(until_ms) then
  return { 'theirs' }
end
local turn = whole(us)
redis.call('HSET', KEYS[1], 'turn', turn .. ':' .. whole(now + tonumber(ARGV[1])))
return { 'yours', turn }
