-- Puts a dead letter back on its queue, its crashes forgotten, or deletes it.
-- KEYS  the ten of jobs, then: 11 a queue
-- ARGV  1 id  2 `front`, `back` or `delete`  3 format  4 outbox, or empty  5 the name of KEYS 11, or empty
-- Answers  {'none'}: there is no such letter | {'again', queue} | {'done'}
-- O(log dead letters)
local K = job_keys(KEYS)
local id, what, format, outbox = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local record = redis.call('HGET', K.jobs, id)
if not record or string.byte(record) ~= 100 then
  return { 'none' }
end
local no_way = may_write({ { 'HSET', K.jobs, 'x', 'x' }, { 'HDEL', K.jobs, 'x' }, { 'HINCRBY', K.meta, 'x', '1' },
  { 'ZREM', K.dead, 'x' } })
if no_way then
  return no_way
end
must_be({ K.meta, K.crashes }, { K.dead, K.queues, K.crashes_at })
local tail = tail_of(record)
local entered, most, way, _, queue, from = read_tail(tail)
if what == 'delete' then
  redis.call('HINCRBY', K.meta, 'dropped', 1)
  redis.call('HDEL', K.jobs, id)
else
  local place = outbox ~= '' and outbox or queue
  if ARGV[5] ~= place then
    return { 'again', place }
  end
  local takes, why = queue_takes(format, KEYS[11], K.set)
  if not takes then
    return redis.error_reply(why)
  end
  local payload, records = string.sub(tail, from), {}
  put_jobs(K, format, KEYS[11], place, { id }, { pack_tail(entered, most, way, '', queue, payload) }, what == 'front',
    records)
  if format == 'own' then
    redis.call('HSET', K.jobs, unpack(records))
  else
    redis.call('HDEL', K.crashes, crash_key(payload))
    redis.call('ZREM', K.crashes_at, crash_key(payload))
  end
end
redis.call('ZREM', K.dead, id)
return { 'done' }
