-- Puts the job of a receipt on its queue: a dead letter from where it lies, a dropped one from what the
-- receipt keeps of it.
-- KEYS  the ten of jobs, then: 11 restored  12 the queue
-- ARGV  1 receipt  2 id  3 format  4 the name of KEYS 12  5 the tail of a dropped one, or empty
-- Answers  {'before'} | {'done'} | {'queued'} | {'flying'} | {'gone'}
-- O(log dead letters)
local K = job_keys(KEYS)
local seq, id, format, place, kept = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('HEXISTS', KEYS[11], seq) == 1 then
  return { 'before' }
end
local record = redis.call('HGET', K.jobs, id)
local head = record and string.byte(record)
if head == 113 then
  return { 'queued' }
elseif head == 102 then
  return { 'flying' }
elseif record and kept ~= '' then
  return { 'queued' }
elseif not record and kept == '' then
  return { 'gone' }
end
local no_way = may_write({ { 'HSET', K.jobs, 'x', 'x' }, { 'HSET', KEYS[11], 'x', 'x' }, { 'HINCRBY', K.meta, 'x', '1' },
  { 'ZREM', K.dead, 'x' } })
if no_way then
  return no_way
end
local takes, why = queue_takes(format, KEYS[12], K.set)
if not takes then
  return redis.error_reply(why)
end
must_be({ K.meta, K.crashes }, { K.dead, K.queues, K.crashes_at })
local tail = record and tail_of(record) or kept
local entered, most, way, _, queue, from = read_tail(tail)
local payload, records = string.sub(tail, from), {}
redis.call('HSET', KEYS[11], seq, whole(clock()))
if record then
  redis.call('ZREM', K.dead, id)
else
  redis.call('HINCRBY', K.meta, 'dropped', -1)
end
put_jobs(K, format, KEYS[12], place, { id }, { pack_tail(entered, most, way, '', queue, payload) }, true, records)
if format == 'own' then
  redis.call('HSET', K.jobs, unpack(records))
else
  redis.call('HDEL', K.crashes, crash_key(payload))
  redis.call('ZREM', K.crashes_at, crash_key(payload))
end
return { 'done' }
