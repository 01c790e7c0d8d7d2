-- Pops jobs of one queue and registers each for one of some incarnations, in one step.
-- KEYS  the ten of jobs, then: 11 the queue, then for each claim: what that incarnation holds
-- ARGV  1 format  2 the queue's name  3 how many claims, then for each:
--       owner  incarnation, or empty for the newest  the incarnation of its KEYS  limit
-- Answers  for each claim:
--          {'unknown'} | {'stranger'} | {'ended', incarnation} | {'again', incarnation}
--          {incarnation, now_ms, first token, popped, [id, tail] a job}
-- O(limits * log held)
--
-- The claims are served in their order. What is on an own queue and is no queued job (a leftover) is
-- popped and left out: `popped` says whether it is worth coming again.
local K = job_keys(KEYS)
local queue, format, name = KEYS[11], ARGV[1], ARGV[2]
local own = format == 'own'
local answers, takers, want = {}, {}, 0
for claim = 1, tonumber(ARGV[3]) do
  local at = 4 * claim
  local inc, no = claimed_life(K, ARGV[at], ARGV[at + 1])
  if not inc then
    answers[claim] = no
  elseif ARGV[at + 2] ~= inc then
    answers[claim] = { 'again', inc }
  else
    local limit = tonumber(ARGV[at + 3])
    takers[#takers + 1] = { claim = claim, inc = inc, held = KEYS[11 + claim], limit = limit }
    want = want + limit
  end
end
local now = clock()
local moment = whole(now)
local popped = want > 0 and redis.call('LRANGE', queue, -want, -1) or {}
local size = #popped
if size == 0 then
  for _, taker in ipairs(takers) do
    answers[taker.claim] = { taker.inc, moment, '0', '0' }
  end
  return answers
end
local no_way = may_write({ { 'LTRIM', queue, '0', '-1' }, { 'HSET', K.jobs, 'x', 'x' }, { 'HSET', K.meta, 'x', 'x' },
  { 'ZADD', takers[1].held, '0', 'x' }, { 'HINCRBY', K.counts, 'x', '1' } })
if no_way then
  return no_way
end
must_be({ K.counts }, {})
for _, taker in ipairs(takers) do
  must_be({}, { taker.held })
end
if not own or size < want then
  must_be({}, { K.queues })
end

-- In the order in which they are popped; a leftover has no id.
local ids, tails, seen, wild, count = {}, {}, {}, {}, 0
if own then
  local records = every('HMGET', K.jobs, popped)
  for i = 1, size do
    local id, record = popped[size + 1 - i], records[size + 1 - i]
    if record and not seen[id] and string.byte(record) == 113 then
      count = count + 1
      seen[id], ids[i], tails[i] = true, id, string.sub(record, 3)
    else
      ids[i], tails[i] = false, false
    end
  end
else
  -- The id of a Sidekiq job is its own. It is only read: what is put back is what was popped.
  local crashes, wanted = crashes_of(K, popped), {}
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
  count = size
  for i = 1, size do
    local at = size + 1 - i
    local id = wanted[at]
    -- One without an id of its own, or whose id is in flight already (the same job was pushed twice).
    if id == '' or taken[at] or seen[id] then
      wild[i] = id
    end
    seen[id], ids[i] = true, id
    tails[i] = pack_tail(moment, '', '', crashes[at] or '', name, popped[at])
  end
end

-- From here on it is written.
local start, first, from = new_tokens(K.meta, math.max(count, 1))
redis.call('LTRIM', queue, 0, -1 - size)
if not own then
  redis.call('ZADD', K.queues, '0', name)
elseif size < want then
  redis.call('ZREM', K.queues, name)
end
local records, r, digits, done, head = {}, 0, ends(), 0, 'f:' .. start
for _, taker in ipairs(takers) do
  local inc, last = taker.inc, math.min(done + taker.limit, size)
  local mine, members, m = ':' .. inc .. ':' .. moment .. ':', {}, 0
  local answer, a = { inc, moment, whole(first), whole(last - done) }, 4
  for i = done + 1, last do
    local id, tail = ids[i], tails[i]
    if id then
      local low = from % 100
      local high, ending = digits[(from - low) / 100 + 1], digits[low + 1]
      if wild[i] then
        id = (wild[i] == '' and 'job' or wild[i]) .. '#' .. start .. high .. ending
      end
      records[r + 1], records[r + 2] = id, head .. high .. ending .. mine .. tail
      members[m + 1], members[m + 2] = '0', id
      answer[a + 1], answer[a + 2] = id, tail
      r, m, a, from, first = r + 2, m + 2, a + 2, from + 1, first + 1
    end
  end
  if m > 0 then
    redis.call('HINCRBY', K.counts, inc, each('ZADD', taker.held, members))
  end
  done, answers[taker.claim] = last, answer
end
if count > 0 then
  each('HSET', K.jobs, records)
  redis.call('HINCRBY', K.meta, 'flying', count)
end
if not own then
  redis.call('HINCRBY', K.meta, 'entered', count)
end
return answers
