-- Puts a session back, if there is none of that id: disconnected, with a whole grace before it.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 session
--       15 pointers  16 pointer of its broadcaster (KEYS 1 again: none)  17 restored
-- ARGV  1 receipt  2 id  3 its broadcaster, or empty  4 `1` if the pointer was removed with it
--       then its fields and values
-- Answers  {'before'} | {'taken'} | {'restored'}
-- O(log disconnected)
local K = base(KEYS)
local now = clock()
local id, broadcaster = ARGV[2], ARGV[3]
if redis.call('HEXISTS', KEYS[17], ARGV[1]) == 1 then
  return { 'before' }
end
if redis.call('EXISTS', KEYS[14]) == 1 then
  return { 'taken' }
end
local points = KEYS[16] ~= KEYS[1] and redis.call('GET', KEYS[16])
local no_way = may_change(K, { session = KEYS[14], disconnected = KEYS[12] })
if no_way then
  return no_way
end
redis.call('ZCARD', KEYS[12])
redis.call('HSET', KEYS[17], ARGV[1], whole(now))
if #ARGV > 4 then
  redis.call('HSET', KEYS[14], unpack(ARGV, 5))
end
mark_disconnected({ session = KEYS[14], disconnected = KEYS[12], idle = KEYS[13] ~= KEYS[1] and KEYS[13] or nil }, id, now)
if ARGV[4] == '1' and KEYS[16] ~= KEYS[1] and not points then
  redis.call('SET', KEYS[16], id)
  redis.call('HSET', KEYS[15], broadcaster, whole(now))
end
if KEYS[13] ~= KEYS[1] then
  redis.call('HINCRBY', K.meta, 'population', 1)
end
return { 'restored' }
