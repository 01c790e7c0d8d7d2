-- Puts a dead letter back on its queue, its crashes forgotten, or deletes it; or forgets it if Sidekiq has
-- retried, deleted or trimmed its job. Then its crashes are forgotten as well, because an operator has decided.
-- KEYS  the base keys, then: 12 dead letters  13 their ids  14 crashes  15 crashes by time
--       16 names of queues  17 the queue  18 restored  19 Sidekiq's set of dead jobs (KEYS 1 again: not
--       needed)
-- ARGV  1 `put_back`, `delete` or `forget`  2 id  3 the queue of KEYS 17: its name  4 `front` or `back`
--       5 format  6 the receipt that is restored, or empty
-- Answers  {'missing'} | {'before'} | {'again'}: look at it again | {'refused', why} | {'left'}: Sidekiq's set
--          has it no more | {'kept'}: to forget, and it is there | {'done'}
-- O(log dead letters + log dead jobs)
local K = base(KEYS)
local dead, dead_ids, crashes, crashes_at, set = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[19]
local op, id, queue, format, seq = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local now = clock()
if seq ~= '' and redis.call('HEXISTS', KEYS[18], seq) == 1 then
  return { 'before' }
end
local record = redis.call('HGET', dead, id)
local of_letter, payload = read_letter(record)
if not of_letter then
  return { 'missing' }
end
must_be({ crashes, K.meta, KEYS[18] }, { dead_ids, crashes_at })
local no_way = may_write({ { 'HDEL', dead, 'x' }, { 'ZREM', dead_ids, 'x' }, { 'HDEL', crashes, 'x' },
  { 'HSET', KEYS[18], 'x', 'x' }, { 'HINCRBY', K.meta, 'x', '1' } })
if no_way then
  return no_way
end
local function forget_crashes()
  local readable, crash_id = read_job(payload, format)
  if readable then
    redis.call('HDEL', crashes, crash_id)
    redis.call('ZREM', crashes_at, crash_id)
  end
end
local score, sha = place_in_set(record)
local member
if score then
  if set == KEYS[1] then
    return { 'again' }
  end
  member = member_of(set, score, sha)
  if not member then
    redis.call('HDEL', dead, id)
    redis.call('ZREM', dead_ids, id)
    forget_crashes()
    return { 'left' }
  end
  no_way = may_write({ { 'ZREM', set, 'x' } })
  if no_way then
    return no_way
  end
end
if op == 'forget' then
  return { 'kept' }
end
local puts = op == 'put_back'
if puts then
  if of_letter ~= queue then
    return { 'again' }
  end
  local takes, why = queue_takes(format, KEYS[17], KEYS[16])
  if not takes then
    return { 'refused', why }
  end
end
redis.call('HDEL', dead, id)
redis.call('ZREM', dead_ids, id)
if member then
  redis.call('ZREM', set, member)
end
if not puts then
  redis.call('HINCRBY', K.meta, 'dropped', 1)
  return { 'done' }
end
forget_crashes()
if seq ~= '' then
  redis.call('HSET', KEYS[18], seq, whole(now))
end
if format ~= 'sidekiq' then
  redis.call('SADD', KEYS[16], queue)
end
queue_put(format, KEYS[17], KEYS[16], queue, { payload }, ARGV[4] == 'front')
return { 'done' }
