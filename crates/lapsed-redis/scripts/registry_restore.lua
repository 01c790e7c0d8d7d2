-- Puts back the entry of a receipt, if its place is free and its owner lives.
-- KEYS  the base keys, then: 12 the registry's hash  13 restored  14 what the owner's incarnation holds
--       15 its heartbeat (KEYS 1 again: none)
-- ARGV  1 receipt  2 owner  3 the incarnation of KEYS 14 (0: keys that the application writes itself)
--       4 key
-- Answers  {'before'} | {'taken', owner} | {'dead'} | {'again', incarnation} | {'restored', incarnation}
-- O(log held)
local K = base(KEYS)
local now = clock()
local seq, owner, inc, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HEXISTS', KEYS[13], seq) == 1 then
  return { 'before' }
end
local holder = redis.call('HGET', KEYS[12], key)
if inc == '0' then
  if redis.call('EXISTS', KEYS[15]) == 0 then
    return { 'dead' }
  end
else
  local current = newest(redis.call('HGET', K.names, owner))
  local incarnation = current and read_incarnation(redis.call('HGET', K.lives, current))
  if not incarnation or incarnation.ending ~= '-' then
    return { 'dead' }
  end
  if current ~= inc then
    return { 'again', current }
  end
end
if holder then
  return { 'taken', holder }
end
if inc ~= '0' then
  local no_way = may_write({ { 'ZADD', KEYS[14], '0', 'x' }, { 'HINCRBY', K.counts, 'x', '1' } })
  if no_way then
    return no_way
  end
  must_be({ K.counts }, { KEYS[14] })
end
local no_way = may_write({ { 'HSET', KEYS[12], 'x', 'x' } })
if no_way then
  return no_way
end
redis.call('HSET', KEYS[13], seq, whole(now))
redis.call('HSET', KEYS[12], key, owner)
if inc ~= '0' then
  redis.call('HINCRBY', K.counts, inc, redis.call('ZADD', KEYS[14], 0, key))
end
return { 'restored', inc }
