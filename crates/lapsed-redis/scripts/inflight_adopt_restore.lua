-- Puts a job that was dropped on its queue, from its receipt.
-- KEYS  the base keys, then: 12 index  13 dead letters  14 names of queues  15 the queue  16 restored
-- ARGV  1 receipt  2 id  3 name of the queue  4 `front` or `back`  5 format  6 payload
-- Answers  {'before'} | {'taken'} | {'refused', why} | {'done'}
-- O(log jobs)
local K = base(KEYS)
local seq, id, queue, format = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local now = clock()
if redis.call('HEXISTS', KEYS[16], seq) == 1 then
  return { 'before' }
end
if redis.call('ZSCORE', KEYS[12], id) or redis.call('HEXISTS', KEYS[13], id) == 1 then
  return { 'taken' }
end
local takes, why = queue_takes(format, KEYS[15], KEYS[14])
if not takes then
  return { 'refused', why }
end
local no_way = may_write({ { 'HSET', KEYS[16], 'x', 'x' }, { 'HINCRBY', K.meta, 'x', '1' } })
if no_way then
  return no_way
end
redis.call('HSET', KEYS[16], seq, whole(now))
redis.call('HINCRBY', K.meta, 'dropped', -1)
if format ~= 'sidekiq' then
  redis.call('SADD', KEYS[14], queue)
end
queue_put(format, KEYS[15], KEYS[14], queue, { ARGV[6] }, ARGV[4] == 'front')
return { 'done' }
