-- The decisive step: guard, act and receipt, for sessions whose grace is over and for references of
-- incarnations that have ended.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 pointers
--       then for each reference five: session, ref_count, references of each incarnation, what the incarnation refers
--       to, what was taken from it
--       then for each session four: session, ref_count, references of each incarnation, pointer of its
--       broadcaster (KEYS 1 again: none)
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 grace_ms  8 shards  9 this shard  10 how many references  11 how many sessions
--       then for each reference: id  its owner  incarnation
--       then for each session: id  its broadcaster, or empty
-- Answers  {now_ms, held_us, owners ended, first receipt, step, codes, reasons, deadlines_ms...}: a code
--          for each reference, then for each session; a reason and a deadline for each R
--          codes: R reclaimed, F released, A alive, S store away, T active, M moved, G gone, U unreadable,
--          L not the leader, D done before
-- O(suspects * log sessions)
--
-- All reads come before the first write, and the first write is the receipt. What a session costs here
-- is mostly what crosses between the server and Lua: what can be asked of all of them at once is, and
-- a receipt keeps the fields as they came.
local K = base(KEYS)
local now, began = clock()
local sweeper, number, act = ARGV[1], ARGV[2], ARGV[4] == 'reclaim'
local grace, shards, shard = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local references_count, sessions_count = tonumber(ARGV[10]), tonumber(ARGV[11])
local disconnected, idle = KEYS[12], KEYS[13] ~= KEYS[1] and KEYS[13] or nil
local back = presence(K.meta, now, tonumber(ARGV[5]), tonumber(ARGV[6]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local no = act and refused(K.meta, K.batches, sweeper, number, ARGV[3], now) or nil
if act then
  local no_way = may_write({ { 'DEL', disconnected }, { 'ZREM', disconnected, 'x' },
    { 'ZADD', disconnected, '0', 'x' }, { 'HSET', K.lives, 'x', 'x' }, { 'HDEL', K.meta, 'x' },
    { 'SET', disconnected, 'x' }, { 'HGETALL', K.meta }, { 'HINCRBY', K.meta, 'x', '1' },
    { 'XADD', K.receipts, '1-0', 'x', 'x' } })
  if no_way then
    return no_way
  end
  redis.call('XLEN', K.receipts)
  redis.call('ZCARD', disconnected)
  redis.call('ZCARD', K.batches_at)
end

-- Owners, each judged once.
local lives = {}
local function verdict_of(inc)
  local known = lives[inc]
  if not known then
    known = { incarnation = read_incarnation(redis.call('HGET', K.lives, inc)) }
    lives[inc] = known
    local incarnation = known.incarnation
    if not incarnation then
      known.code = 'G'
    elseif incarnation.ending == '-' then
      local deadline = tonumber(redis.call('ZSCORE', K.due, inc) or 0)
      if now < deadline then
        known.code = 'A'
      elseif now < due_at(deadline, incarnation.started, incarnation.ttl, back) then
        known.code = 'S'
      else
        known.deadline = deadline
      end
    end
  end
  return known
end

local done = {} -- the same suspect may come twice
local function judge_reference(r)
  local mark = r.inc .. ':' .. r.id
  if done[mark] then
    return 'G'
  end
  done[mark] = true
  local known = verdict_of(r.inc)
  if known.code then
    return known.code
  end
  r.count = references(r.ref_count)
  local fields = redis.pcall('HLEN', r.session)
  if not r.count or type(fields) == 'table' then
    return 'U'
  end
  r.mine = tonumber(redis.call('HGET', r.refs, r.inc) or 0)
  r.exists = fields > 0
  if r.mine == 0 or not r.exists then
    r.stale = true
    return 'G'
  end
  return 'F'
end

local codes, released = {}, {}
for n = 1, references_count do
  local a, k = 8 + 3 * n, 9 + 5 * n
  local r = { id = ARGV[a + 1], inc = ARGV[a + 3], session = KEYS[k + 1], ref_count = KEYS[k + 2],
    refs = KEYS[k + 3], held = KEYS[k + 4], lost = KEYS[k + 5] }
  r.code = no or judge_reference(r)
  codes[n], released[n] = r.code, r
end

-- What can be read of all sessions at once is.
local first_arg, first_key = 11 + 3 * references_count, 14 + 5 * references_count
local ids, strings, scores, values = {}, {}, {}, {}
if sessions_count > 0 and not no then
  for n = 1, sessions_count do
    ids[n] = ARGV[first_arg + 2 * n - 1]
    strings[2 * n - 1], strings[2 * n] = KEYS[first_key + 4 * n - 2], KEYS[first_key + 4 * n]
  end
  scores = every('ZMSCORE', idle or disconnected, ids)
  for from = 1, #strings, CHUNK do
    local part = redis.call('MGET', unpack(strings, from, math.min(from + CHUNK - 1, #strings)))
    for i = 1, #part do
      values[from + i - 1] = part[i]
    end
  end
end

local times = {} -- many were disconnected in the same second
local function time_of(text)
  local ms = times[text]
  if ms == nil then
    ms = to_ms(text) or false
    times[text] = ms
  end
  return ms
end

-- Since when no client is connected to it; 0: one is connected, or is reconnecting.
local function since_when(score, gone)
  if idle then
    local since = tonumber(score or 0)
    return since > 0 and idle_since(since, gone) or 0
  end
  -- A reconnect or a new disconnect of the application's is several commands: whichever of them has
  -- arrived counts. If it was taken out of its index, a client is reconnecting; in it with a later time than its
  -- hash says, it is that time.
  return score and gone > 0 and math.max(gone, time_of(score) or 0) or 0
end

-- Answers the code; and whether its place in the index is stale, or of an R the deadline, the reason,
-- the fields and their bytes.
local function judge_session(n, session, ref_count, owner)
  local fields = redis.pcall('HGETALL', session)
  local size = #fields
  if fields.err or size > 2 * FIELDS_MAX then
    return 'U'
  end
  if size == 0 then
    return 'G', true
  end
  local gone_at, broadcaster, bytes = '0', '', 0
  for i = 1, size, 2 do
    local field, value = fields[i], fields[i + 1]
    bytes = bytes + #field + #value
    if field == 'last_disconnect' then
      gone_at = value
    elseif field == 'broadcaster_user_id' then
      broadcaster = value
    end
  end
  local count = values[2 * n - 1] == '0' and 0 or references(ref_count)
  local gone = time_of(gone_at)
  if not count or not gone then
    return 'U'
  end
  local since = since_when(scores[n], gone)
  if count > 0 or since == 0 then
    return 'T', true
  end
  if now < since + grace then
    return 'A'
  end
  if now < math.max(since, back) + grace then
    return 'S'
  end
  if broadcaster ~= owner then
    return 'M'
  end
  return 'R', math.ceil(since + grace), gone > 0 and 'o' or 'n', fields, bytes
end

-- Receipts lie in items of bounded size: for each session its id, broadcaster, deadline, reason, whether
-- its broadcaster pointed to it, and its fields.
local items, item, bytes = {}, nil, 0
local function file(id, owner, deadline, reason, points, fields, size)
  if not item or bytes > 65536 or item.count >= 500 then
    item, bytes = { count = 0, rows = {} }, 0
    items[#items + 1] = item
  end
  local rows, at = item.rows, 6 * item.count
  rows[at + 1], rows[at + 2], rows[at + 3] = id, owner, deadline
  rows[at + 4], rows[at + 5], rows[at + 6] = reason, points and 1 or 0, fields
  item.count, bytes = item.count + 1, bytes + size
end

local deadlines, reasons, reclaimed = {}, {}, 0
local gone, keys, pointed = {}, {}, {} -- what is to be removed
for n = 1, sessions_count do
  local code = no
  if not no and done[ids[n]] then
    code = 'G'
  elseif not no then
    local id, at = ids[n], first_key + 4 * n
    local owner, pointer = ARGV[first_arg + 2 * n], KEYS[at]
    done[id] = true
    local deadline, reason, fields, size
    code, deadline, reason, fields, size = judge_session(n, KEYS[at - 3], KEYS[at - 2], owner)
    if code == 'R' then
      local points = pointer ~= KEYS[1] and values[2 * n] == id
      local last = #keys
      keys[last + 1], keys[last + 2], keys[last + 3] = KEYS[at - 3], KEYS[at - 2], KEYS[at - 1]
      if points then
        keys[last + 4] = pointer
        pointed[#pointed + 1] = owner
      end
      reclaimed = reclaimed + 1
      deadlines[reclaimed], reasons[reclaimed] = deadline, reason
      file(id, owner, deadline, reason, points, fields, size)
    end
    if deadline then
      gone[#gone + 1] = id
    end
  end
  codes[references_count + n] = code
end

local function let_go(r)
  local known = lives[r.inc]
  local ended = 0
  if known.deadline then
    finish(K, r.inc, known.incarnation, 'd', now, known.deadline)
    known.deadline, ended = nil, 1
  end
  if r.code == 'F' then
    -- References of another incarnation may have been released in this batch, so it is read again.
    local left = math.max(references(r.ref_count) - r.mine, 0)
    redis.call('HDEL', r.refs, r.inc)
    left = math.max(left, left == 0 and owned_references(r.refs) or 0)
    redis.call('SET', r.ref_count, whole(left), 'KEEPTTL')
    if left == 0 then
      mark_disconnected({ session = r.session, disconnected = disconnected, idle = idle }, r.id, now)
    end
    if redis.call('ZCARD', r.lost) < 1000 then
      redis.call('ZADD', r.lost, 0, r.id)
    end
  elseif not r.exists then
    forget_references(r.refs, r.ref_count, r.inc, r.mine)
  end
  if redis.call('HINCRBY', K.counts, r.inc, 0 - redis.call('ZREM', r.held, r.id)) <= 0 then
    redis.call('ZREM', K.ended, r.inc)
  end
  return ended
end

local ended, first, step = 0, 0, 1
if act and not no then
  if reclaimed > 0 then
    first, step = receipt_numbers(K.meta, reclaimed, now, shards, shard)
    local last = first - step
    for _, part in ipairs(items) do
      last = last + part.count * step
      redis.call('XADD', K.receipts, whole(last) .. '-0', 'i', '0', 't', whole(now), 's', sweeper, 'b', number,
        'p', step, 'n', part.count, 'v', cmsgpack.pack(part.rows))
    end
    redis.call('HINCRBY', K.meta, 'receipts', reclaimed)
    if idle then
      redis.call('HINCRBY', K.meta, 'population', 0 - reclaimed)
    else
      note_deaths(K.meta, now, grace, deadlines)
    end
    note_batch(K, sweeper, number, first, last, now)
  end
  local any = false
  for _, r in ipairs(released) do
    if r.code == 'F' or r.stale then
      ended = ended + let_go(r)
      any = any or r.code == 'F'
    end
  end
  for from = 1, #keys, CHUNK do
    redis.call('DEL', unpack(keys, from, math.min(from + CHUNK - 1, #keys)))
  end
  if #pointed > 0 then
    each('HDEL', KEYS[14], pointed)
  end
  if #gone > 0 then
    each('ZREM', disconnected, gone)
    if idle then
      each('ZREM', idle, gone)
    end
  end
  if reclaimed == 0 and any then
    note_batch(K, sweeper, number, 1, 0, now)
  end
end

local _, finished = clock()
local answer = { whole(now), whole(finished - began), ended, whole(first), step, table.concat(codes),
  table.concat(reasons) }
for n = 1, reclaimed do
  answer[7 + n] = deadlines[n]
end
return answer
