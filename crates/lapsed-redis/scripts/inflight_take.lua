-- Pops jobs and registers them for one life, in one step.
-- KEYS  the ten of jobs, then: 11 the queue  12 what that life holds
-- ARGV  1 owner  2 incarnation, or empty for the newest  3 the incarnation of KEYS 12  4 format
--       5 the queue's name  6 limit
-- Answers  {'unknown'} | {'stranger'} | {'ended', incarnation} | {'again', incarnation}
--          {incarnation, now_ms, first token, popped, [id, tail] a job}
-- O(limit * log held)
--
-- What is on an own queue and is no queued job (a leftover) is popped and left out: `popped` says
-- whether it is worth coming again.
local K = job_keys(KEYS)
local queue, held = KEYS[11], KEYS[12]
local format, name, limit = ARGV[4], ARGV[5], tonumber(ARGV[6])
local inc, no = claimed_life(K, ARGV[1], ARGV[2])
if not inc then
  return no
end
if ARGV[3] ~= inc then
  return { 'again', inc }
end
local now = clock()
local popped = redis.call('LRANGE', queue, -limit, -1)
if #popped == 0 then
  return { inc, whole(now), '0', '0' }
end
local no_way = may_write({ { 'LTRIM', queue, '0', '-1' }, { 'HSET', K.jobs, 'x', 'x' }, { 'HSET', K.meta, 'x', 'x' },
  { 'ZADD', held, '0', 'x' }, { 'HINCRBY', K.counts, 'x', '1' } })
if no_way then
  return no_way
end
local own = format == 'own'
must_be({ K.counts }, { held })
if not own or #popped < limit then
  must_be({}, { K.queues })
end

local ids, tails, seen, wild, count = {}, {}, {}, {}, 0
if own then
  local records = every('HMGET', K.jobs, popped)
  for i = #popped, 1, -1 do
    local id, record = popped[i], records[i]
    if record and not seen[id] and string.byte(record) == 113 then
      count = count + 1
      seen[id], ids[count], tails[count] = true, id, string.sub(record, 3)
    end
  end
else
  -- The id of a Sidekiq job is its own. It is only read: what is put back is what was popped.
  local crashes, wanted, entered = crashes_of(K, popped), {}, whole(now)
  for i, payload in ipairs(popped) do
    local ok, job = false, nil
    if format == 'sidekiq' and #payload <= 65536 then
      ok, job = pcall(cjson.decode, payload)
    end
    local jid = ok and type(job) == 'table' and job.jid
    local fits = type(jid) == 'string' and #jid > 0 and #jid <= 256 and not string.find(jid, '[^%w%-_.:]')
    wanted[i] = fits and jid or ''
  end
  local taken = every('HMGET', K.jobs, wanted)
  for i = #popped, 1, -1 do
    local id = wanted[i]
    count = count + 1
    -- One without an id of its own, or whose id is in flight already (the same job was pushed twice).
    if id == '' or taken[i] or seen[id] then
      wild[count] = id
    end
    seen[id], ids[count] = true, id
    tails[count] = pack_tail(entered, '', '', crashes[i] or '', name, popped[i])
  end
end

-- From here on it is written.
local start, first, from = new_tokens(K.meta, math.max(count, 1))
redis.call('LTRIM', queue, 0, -1 - #popped)
if not own then
  redis.call('ZADD', K.queues, '0', name)
elseif #popped < limit then
  redis.call('ZREM', K.queues, name)
end
local answer = { inc, whole(now), whole(first), whole(#popped) }
if count == 0 then
  return answer
end
local mine, records, members, digits = ':' .. inc .. ':' .. whole(now) .. ':', {}, {}, ends()
for i = 1, count do
  local id, tail, at = ids[i], tails[i], from + i - 1
  local low = at % 100
  local high, last = digits[(at - low) / 100 + 1], digits[low + 1]
  if wild[i] then
    id = (wild[i] == '' and 'job' or wild[i]) .. '#' .. start .. high .. last
  end
  local odd, even = 2 * i - 1, 2 * i
  records[odd], records[even] = id, 'f:' .. start .. high .. last .. mine .. tail
  members[odd], members[even] = '0', id
  answer[4 + odd], answer[4 + even] = id, tail
end
each('HSET', K.jobs, records)
redis.call('HINCRBY', K.counts, inc, each('ZADD', held, members))
redis.call('HINCRBY', K.meta, 'flying', count)
if not own then
  redis.call('HINCRBY', K.meta, 'entered', count)
end
return answer
