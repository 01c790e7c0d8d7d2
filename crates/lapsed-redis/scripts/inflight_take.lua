-- Pops jobs of one queue and registers each for one of some incarnations, in one step.
-- KEYS  the ten of jobs, then: 11 the queue  12 requests  13 requests_at, then for each claim: what that
--       incarnation holds
-- ARGV  1 format  2 the queue's name  3 how many claims, then for each:
--       owner  incarnation, or empty for the newest  the incarnation of its KEYS  limit
--       key of the request, or empty for none  attempt  fingerprint  which call of the request this is, from 1
--       then keys of earlier takes that are to be forgotten: their answers arrived, and nobody repeats them
-- Answers  for each claim:
--          {'unknown'} | {'stranger'} | {'ended', incarnation} | {'again', incarnation}
--          {'given_up'}: this attempt was given up | {'reused'}: the key came before with another fingerprint
--          {incarnation, now_ms, first token, popped, [id, tail] a job}
--          {incarnation, now_ms, 'kept', popped, [token, id, tail] a job}: what this call of the request took
--          before, as far as its claims still hold it
-- O(limits * log held)
--
-- The claims are served in their order. What is on an own queue and is no queued job (a leftover) is
-- popped and left out: `popped` says whether it is worth coming again. A request that took something is
-- kept in the same step, so that a repetition of it takes nothing else.
local K = job_keys(KEYS)
local queue, requests, requests_at, format, name = KEYS[11], KEYS[12], KEYS[13], ARGV[1], ARGV[2]
local own = format == 'own'
local answers, takers, want = {}, {}, 0
local now = clock()
local moment = whole(now)
local delivered = { unpack(ARGV, 8 * tonumber(ARGV[3]) + 4) }
if #delivered > 0 and not may_keep(requests, requests_at) then
  each('HDEL', requests, delivered)
  each('ZREM', requests_at, delivered)
end

-- What an earlier attempt of this call took; what its claims no longer hold is left out.
local function kept_answer(inc, part)
  local answer, a, records = { inc, moment, 'kept', part.popped }, 4, every('HMGET', K.jobs, part.ids)
  for i, id in ipairs(part.ids) do
    local record = records[i]
    if record and string.find(record, 'f:' .. part.tokens[i] .. ':' .. inc .. ':', 1, true) == 1 then
      answer[a + 1], answer[a + 2], answer[a + 3] = part.tokens[i], id, tail_of(record)
      a = a + 3
    end
  end
  return answer
end

-- A claim that is part of a request: its answer if it is not to take anything, and what was kept of the
-- request before.
local asked = {}
local function repeated(inc, key, attempt, fingerprint, call)
  if asked[key] then
    -- Another attempt is in the same batch: this one comes again after it.
    return { 'again', inc }
  elseif redis.call('HEXISTS', requests, '!' .. attempt) == 1 then
    return { 'given_up' }
  end
  local kept, reused = find_request(requests, key, fingerprint, now)
  local no_way = may_keep(requests, requests_at)
  if reused or no_way then
    return no_way or { reused }
  end
  local take = kept and read_take(kept)
  if take and take.inc ~= inc then
    -- Another incarnation of the owner took them: this attempt is not answered with them.
    return { inc, moment, 'kept', '0' }
  end
  if take and not has_attempt(take, attempt) then
    take.attempts = take.attempts .. ',' .. attempt
    keep_request(requests, requests_at, key, fingerprint, now, pack_take(take))
  end
  if take and take.parts[call] then
    return kept_answer(inc, take.parts[call])
  end
  asked[key] = true
  return nil, take or { inc = inc, attempts = attempt, parts = {}, jobs = '' }
end

for claim = 1, tonumber(ARGV[3]) do
  local at = 8 * claim - 4
  local inc, no = claimed_life(K, ARGV[at], ARGV[at + 1])
  if not inc then
    answers[claim] = no
  elseif ARGV[at + 2] ~= inc then
    answers[claim] = { 'again', inc }
  else
    local limit, key, answer, take = tonumber(ARGV[at + 3]), ARGV[at + 4], nil, nil
    if key ~= '' then
      answer, take = repeated(inc, key, ARGV[at + 5], ARGV[at + 6], tonumber(ARGV[at + 7]))
    end
    if answer and answer.err then
      return answer
    elseif answer then
      answers[claim] = answer
    else
      takers[#takers + 1] = { claim = claim, inc = inc, held = KEYS[13 + claim], limit = limit, key = key,
        fingerprint = ARGV[at + 6], take = take }
      want = want + limit
    end
  end
end
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
  local lines = { '=' .. whole(last - done) .. '\n' }
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
      if taker.take then
        lines[#lines + 1] = start .. high .. ending .. ' ' .. id .. '\n'
      end
      r, m, a, from, first = r + 2, m + 2, a + 2, from + 1, first + 1
    end
  end
  if m > 0 then
    redis.call('HINCRBY', K.counts, inc, each('ZADD', taker.held, members))
    if taker.take then
      taker.take.jobs = taker.take.jobs .. table.concat(lines)
      keep_request(requests, requests_at, taker.key, taker.fingerprint, now, pack_take(taker.take))
    end
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
