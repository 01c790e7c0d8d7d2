-- The decisive step: guard, what becomes of each job, and receipt.
-- KEYS  the base keys, then: 12 jobs  13 dead  14 queues  15 crashes  16 crashes_at  17 Sidekiq's set of
--       queues (KEYS 1 again: none), then for each group two: what the incarnation holds, what was taken from
--       it; then some queues
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 format  8 way  9 crashes_max  10 crash window_ms  11 age_max_ms  12 outbox, or empty
--       13 how many groups  14 how many queues  15 the queue of way `m`, or empty; then the names of the queues, then for each group:
--       incarnation  owner  how many jobs  their ids
-- Answers  {'again', queue...}: nothing was done; call once more with these
--          {now_ms, held_us, owners ended, first receipt, [deadline_ms, how, codes, rows] a group}
--          rows: what the receipts say, packed: id, what became of it, what is kept of a dropped one (else empty)
--          a job of each R
--          codes: one letter a job: R reclaimed, A alive, S store away, M moved, G gone, N its queue does
--          not take it, L not the leader, D done before
-- O(jobs * log held)
--
-- Nothing can come in between, because it is one script. All reads come before the first write, and
-- the first write is the receipt: what could fail (a wrong type, no permission, no memory) fails
-- before anything has changed. A queue that is of another type is no failure: its jobs stay.
local K = base(KEYS)
K.jobs, K.dead, K.queues, K.crashes, K.crashes_at, K.set = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local now, began = clock()
local sweeper, number, term, act = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'reclaim'
local format, outbox, move_to = ARGV[7], ARGV[12], ARGV[15]
local rule = { way = ARGV[8], crashes_max = tonumber(ARGV[9]), age_max = tonumber(ARGV[11]) }
local moment = whole(now)
local window, count, given = tonumber(ARGV[10]), tonumber(ARGV[13]), tonumber(ARGV[14])
local back = presence(K.meta, now, tonumber(ARGV[5]), tonumber(ARGV[6]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local no = act and refused(K.meta, K.batches, sweeper, number, term, now) or nil
if act then
  local no_way = may_write({ { 'HDEL', K.jobs, 'x' }, { 'HSET', K.jobs, 'x', 'x' }, { 'ZREM', K.due, 'x' },
    { 'ZADD', K.dead, '0', 'x' }, { 'ZADD', K.queues, '0', 'x' }, { 'HSET', K.lives, 'x', 'x' },
    { 'HINCRBY', K.meta, 'x', '1' }, { 'XADD', K.receipts, '1-0', 'x', 'x' } })
  if no_way then
    return no_way
  end
  redis.call('XLEN', K.receipts)
  must_be({ K.counts, K.lives, K.jobs, K.crashes },
    { K.batches_at, K.due, K.ended, K.deaths, K.past, K.dead, K.queues, K.crashes_at })
end

-- Queues: where they are, and whether they take something.
local keys, takes, missing = {}, {}, { 'again' }
for i = 1, given do
  keys[ARGV[15 + i]] = KEYS[17 + 2 * count + i]
end
local function is_open(name)
  if takes[name] == nil then
    takes[name] = true
    if keys[name] then
      takes[name] = queue_takes(format, keys[name], K.set)
    else
      missing[#missing + 1] = name
    end
  end
  return takes[name]
end

local groups, at, reclaimed = {}, 16 + given, 0
for g = 1, count do
  local inc, size = ARGV[at], tonumber(ARGV[at + 2])
  -- Of the jobs that are taken from it, in the order of the batch: what each array says.
  local group = { inc = inc, owner = ARGV[at + 1], held = KEYS[16 + 2 * g], lost = KEYS[17 + 2 * g], gone = {},
    jobs = {}, tokens = {}, tails = {}, dids = {}, extras = {}, places = {}, logs = {}, rows = {} }
  local ids = {}
  for i = 1, size do
    ids[i] = ARGV[at + 2 + i]
  end
  at = at + 3 + size
  -- The incarnation.
  local verdict = no
  if not no then
    local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
    group.incarnation = incarnation
    must_be({}, { group.held, group.lost })
    if not incarnation then
      verdict = 'G'
    elseif incarnation.ending ~= '-' then
      group.deadline, group.how = incarnation.deadline, incarnation.ending
    else
      group.deadline = tonumber(redis.call('ZSCORE', K.due, inc) or 0)
      if now < group.deadline then
        verdict = 'A'
      elseif now < due_at(group.deadline, incarnation.started, incarnation.ttl, back) then
        verdict = 'S'
      else
        group.how, group.ends = 'd', true
      end
    end
  end
  -- What it holds.
  if verdict then
    group.codes = string.rep(verdict, size)
  else
    local codes, records, crashed, seen = {}, every('HMGET', K.jobs, ids), group.how == 'd', {}
    local late, jobs, rows = now - group.deadline, group.jobs, group.rows
    -- Most jobs have not crashed before and are alike: what becomes of them is decided once.
    local alike, did, extra, moved, note = nil, nil, nil, nil, nil
    for i = 1, size do
      local id, record, code = ids[i], records[i], 'R'
      local token, holder, from, most, way, before, crashes, after, queue
      if record then
        token, holder, from, most, way, before, crashes, after, queue =
          string.match(record, '^f:(%d+):(%d+):%d+:()%d+:(%d*):(%a?):()([%d,]*)():([^\n]*)\n')
      end
      if not token or seen[id] then
        code = 'G'
      elseif holder ~= inc then
        code = 'M'
      end
      if code ~= 'R' then
        if not seen[id] then
          group.gone[#group.gone + 1] = id
        end
      else
        seen[id] = true
        local log = crashed and moment or ''
        local kind = most .. ':' .. way .. ':' .. queue
        if crashes ~= '' or kind ~= alike then
          local kept = counting(crashes, window, now)
          if crashed then
            kept[#kept + 1] = moment
          end
          log, alike = table.concat(kept, ','), crashes == '' and kind or nil
          did, extra, moved = decide(rule, way, most, crashed, #kept, late)
          note = ':' .. #kept .. ':' .. queue .. (moved and '\1' .. move_to or '')
        end
        local place = moved and move_to or outbox ~= '' and outbox or queue
        if did == 'p' and not is_open(place) then
          code = 'N'
        else
          local n = #jobs + 1
          local rest = moved and ':' .. move_to .. string.sub(record, after + 1 + #queue) or string.sub(record, after)
          local tail = string.sub(record, from, before - 1) .. log .. rest
          jobs[n], group.tokens[n], group.tails[n], group.dids[n] = id, tonumber(token), tail, did
          group.extras[n], group.places[n], group.logs[n] = extra or false, place, log
          rows[3 * n - 2], rows[3 * n - 1] = id, did .. (did == 'd' and extra or '') .. ':' .. token .. note
          rows[3 * n] = did == 'x' and tail or ''
          group.gone[#group.gone + 1] = id
        end
      end
      codes[i] = code
    end
    group.codes = table.concat(codes)
  end
  reclaimed = reclaimed + #group.jobs
  groups[g] = group
end
if #missing > 1 then
  return missing
end
for _, group in ipairs(groups) do
  group.rows = #group.jobs > 0 and cmsgpack.pack(group.rows) or ''
end

-- The jobs of a group in the order in which they were taken, which is not that of their ids.
local function in_order(group)
  local tokens, place, order = {}, {}, {}
  for i, token in ipairs(group.tokens) do
    tokens[i], place[token] = token, i
  end
  table.sort(tokens)
  for i, token in ipairs(tokens) do
    order[i] = place[token]
  end
  return order
end

local ended, first = 0, 0
if act and not no then
  if reclaimed > 0 then
    first = numbers(K.meta, 'receipt', reclaimed) + 1
    local seq = first
    for _, group in ipairs(groups) do
      local size = #group.jobs
      if size > 0 then
        seq = seq + size
        redis.call('XADD', K.receipts, whole(seq - 1) .. '-0', 'o', group.owner, 'i', group.inc,
          'd', whole(group.deadline), 'r', group.how, 't', moment, 's', sweeper, 'b', number, 'p', 1,
          'n', size, 'w', group.rows)
      end
    end
    redis.call('HINCRBY', K.meta, 'receipts', reclaimed)
  end
  local puts, records, letters, drop, log = {}, {}, {}, {}, {}
  for _, group in ipairs(groups) do
    if group.ends then
      finish(K, group.inc, group.incarnation, 'd', now, group.deadline)
      ended = ended + 1
    end
    local lost = {}
    for n, i in ipairs(in_order(group)) do
      local id, tail, did, extra = group.jobs[i], group.tails[i], group.dids[i], group.extras[i]
      if did == 'p' then
        add_put(puts, group.places[i], extra, id, tail)
        if format ~= 'own' and group.logs[i] ~= '' then
          log[#log + 1] = crash_key(payload_of(tail))
          log[#log + 1] = group.logs[i]
        end
      elseif did == 'd' then
        letters[#letters + 1] = id
        records[#records + 1] = id
        records[#records + 1] = pack_dead(extra, now, '', tail)
      else
        drop[#drop + 1] = id
      end
      if n <= 1000 then
        lost[n] = id
      end
    end
    if #group.gone > 0 then
      local left = redis.call('HINCRBY', K.counts, group.inc, 0 - each('ZREM', group.held, group.gone))
      if left <= 0 then
        redis.call('ZREM', K.ended, group.inc)
      end
    end
    if #lost > 0 then
      local room = 1000 - redis.call('ZCARD', group.lost)
      for i = #lost, math.max(room, 0) + 1, -1 do
        lost[i] = nil
      end
      each('ZADD', group.lost, members(lost))
    end
  end
  for _, put in ipairs(puts) do
    put_jobs(K, format, keys[put.name], put.name, put.ids, put.tails, put.front, records)
  end
  each('HSET', K.jobs, records)
  each('ZADD', K.dead, members(letters))
  if #drop > 0 then
    each('HDEL', K.jobs, drop)
    redis.call('HINCRBY', K.meta, 'dropped', #drop)
  end
  for i = 1, #log, 2 do
    redis.call('HSET', K.crashes, log[i], log[i + 1])
    redis.call('ZADD', K.crashes_at, moment, log[i])
  end
  if format ~= 'own' then
    local old = redis.call('ZRANGEBYSCORE', K.crashes_at, '-inf', whole(now - window), 'LIMIT', 0, 100)
    each('HDEL', K.crashes, old)
    each('ZREM', K.crashes_at, old)
  end
  if reclaimed > 0 then
    redis.call('HINCRBY', K.meta, 'flying', 0 - reclaimed)
    note_batch(K, sweeper, number, first, first + reclaimed - 1, now)
  end
end

local _, done = clock()
local answer = { whole(now), whole(done - began), whole(ended), whole(first) }
for _, group in ipairs(groups) do
  answer[#answer + 1] = whole(group.deadline or 0)
  answer[#answer + 1] = group.how or ''
  answer[#answer + 1] = group.codes
  answer[#answer + 1] = group.rows
end
return answer
