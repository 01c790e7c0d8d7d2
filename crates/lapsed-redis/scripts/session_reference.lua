-- Adds a reference (`connect`), removes one (`disconnect`), or only starts the grace again (`resume`).
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 session
--       15 ref_count  16 references of each incarnation  17 what the incarnation refers to (KEYS 1 again: not known)
-- ARGV  1 `connect`, `disconnect`, `resume`  2 id  3 owner, or empty: references without an owner
--       4 incarnation, or empty for the newest  5 the incarnation of KEYS 17
-- Answers  {'ended', incarnation} | {'stranger'} | {'missing'} | {'unknown'} | {'again', incarnation}
--          {incarnation, references, the caller's, `1` if anything changed, disconnected in ms or 0}
-- O(log disconnected)
local K = base(KEYS)
local now = clock()
local op, id, owner, inc = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local S = { session = KEYS[14], disconnected = KEYS[12], idle = KEYS[13] ~= KEYS[1] and KEYS[13] or nil }
local owned = owner ~= '' and op ~= 'resume'
if owned then
  local known = inc ~= '' and inc or newest(redis.call('HGET', K.names, owner))
  local incarnation = known and read_incarnation(redis.call('HGET', K.lives, known))
  if inc ~= '' and (not incarnation or incarnation.name ~= owner) then
    return { 'stranger' }
  end
  if incarnation and incarnation.ending ~= '-' then
    return { 'ended', known }
  end
  if not is_there(S.session) then
    return { 'missing' }
  end
  if not incarnation then
    return { 'unknown' }
  end
  inc = known
  if ARGV[5] ~= inc then
    return { 'again', inc }
  end
elseif not is_there(S.session) then
  return { 'missing' }
end
local count = references(KEYS[15])
if not count then
  return redis.error_reply('WRONGTYPE `' .. KEYS[15] .. '` does not hold a number')
end
local yours = owned and tonumber(redis.call('HGET', KEYS[16], inc) or 0) or count
local no_way = may_change(K, S)
if no_way then
  return no_way
end
redis.call('ZCARD', S.disconnected)
local changed = true
if op == 'connect' then
  count, yours = count + 1, yours + 1
  redis.call('SET', KEYS[15], whole(count), 'KEEPTTL')
  if owned then
    redis.call('HSET', KEYS[16], inc, whole(yours))
    redis.call('HINCRBY', K.counts, inc, redis.call('ZADD', KEYS[17], 0, id))
  end
  mark_active(S, id, now, count)
elseif op == 'disconnect' and yours > 0 then
  -- Somebody may have changed the count by hand: those who are known to be connected are.
  local others = owned and count <= 1 and owned_references(KEYS[16]) - 1 or 0
  count, yours = math.max(count - 1, others), yours - 1
  redis.call('SET', KEYS[15], whole(count), 'KEEPTTL')
  if owned and yours > 0 then
    redis.call('HSET', KEYS[16], inc, whole(yours))
  elseif owned then
    redis.call('HDEL', KEYS[16], inc)
    redis.call('HINCRBY', K.counts, inc, 0 - redis.call('ZREM', KEYS[17], id))
  end
  if count == 0 then
    mark_disconnected(S, id, now)
  end
elseif op == 'resume' and count == 0 then
  mark_active(S, id, now, count)
else
  changed = false
end
local shown = show(K, S, id, now, count)
return { owned and inc or '0', whole(count), whole(yours), changed and '1' or '0', count == 0 and shown[8] or '0' }
