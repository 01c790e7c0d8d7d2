-- Makes a session or brings it back (`activate`), changes what it carries (`update`), or shows it
-- (`get`).
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 session
--       15 ref_count  16 pointers  17 pointer of its broadcaster from now on  18 pointer of the one
--       before (both: KEYS 1 again if there is none)
-- ARGV  1 `activate`, `update` or `get`  2 id  3 its broadcaster from now on, or empty
--       4 its broadcaster before, as the caller expects, or empty  then fields and values to set
-- Answers  {'missing'} | {'again', broadcaster} | {`1` if it was made, what `show` answers...}
-- O(log disconnected)
local K = base(KEYS)
local now = clock()
local op, id, broadcaster, before = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local S = { session = KEYS[14], disconnected = KEYS[12], idle = KEYS[13] ~= KEYS[1] and KEYS[13] or nil }
local exists = redis.call('EXISTS', S.session) == 1
if not exists and op ~= 'activate' then
  return { 'missing' }
end
local count = references(KEYS[15])
if not count then
  return redis.error_reply('WRONGTYPE `' .. KEYS[15] .. '` does not hold a number')
end
local current = redis.call('HGET', S.session, 'broadcaster_user_id') or ''
if op ~= 'get' then
  if current ~= before then
    return { 'again', current }
  end
  local fields = { 'last_update', whole(now) }
  for i = 5, #ARGV do
    fields[#fields + 1] = ARGV[i]
  end
  local owns = current ~= '' and redis.call('GET', KEYS[18]) == id
  local no_way = may_change(K, S)
  if no_way then
    return no_way
  end
  redis.call('ZCARD', S.disconnected)
  if not exists and S.idle then
    redis.call('HINCRBY', K.meta, 'population', 1)
  end
  redis.call('HSET', S.session, unpack(fields))
  if op == 'activate' then
    mark_active(S, id, now, count)
  end
  if current ~= '' and current ~= broadcaster and owns then
    redis.call('DEL', KEYS[18])
    redis.call('HDEL', KEYS[16], current)
  end
  -- An update does not take the place of another session of the same broadcaster; an activation does.
  if broadcaster ~= '' and (op == 'activate' or current ~= broadcaster) then
    redis.call('SET', KEYS[17], id)
    redis.call('HSET', KEYS[16], broadcaster, whole(now))
  end
end
local answer = show(K, S, id, now, count)
table.insert(answer, 1, exists and '0' or '1')
return answer
