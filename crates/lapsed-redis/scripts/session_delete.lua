-- Removes a session with all of its data, unless a client is connected.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 session
--       15 ref_count  16 pointers  17 pointer of its broadcaster (KEYS 1 again: none)
--       18 references of each incarnation
-- ARGV  1 id  2 its broadcaster, as the caller expects, or empty
-- Answers  {'missing'} | {'active', references} | {'again', broadcaster} | {'deleted'}
-- O(log disconnected)
local K = base(KEYS)
local id = ARGV[1]
if redis.call('EXISTS', KEYS[14]) == 0 then
  return { 'missing' }
end
local count = references(KEYS[15])
if not count then
  return redis.error_reply('WRONGTYPE `' .. KEYS[15] .. '` does not hold a number')
end
if count > 0 then
  return { 'active', whole(count) }
end
local broadcaster = redis.call('HGET', KEYS[14], 'broadcaster_user_id') or ''
if broadcaster ~= ARGV[2] then
  return { 'again', broadcaster }
end
local points = broadcaster ~= '' and redis.call('GET', KEYS[17]) == id
local no_way = may_change(K, { session = KEYS[14], disconnected = KEYS[12] })
if no_way then
  return no_way
end
redis.call('ZCARD', KEYS[12])
redis.call('DEL', KEYS[14], KEYS[15], KEYS[18])
if points then
  redis.call('DEL', KEYS[17])
  redis.call('HDEL', KEYS[16], broadcaster)
end
redis.call('ZREM', KEYS[12], id)
if KEYS[13] ~= KEYS[1] then
  redis.call('ZREM', KEYS[13], id)
  redis.call('HINCRBY', K.meta, 'population', -1)
end
return { 'deleted' }
