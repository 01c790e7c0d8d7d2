-- The decisive step: guard, act and receipt, for sessions whose grace is over and for references of
-- lives that are.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)  14 pointers
--       then for each suspect five: session, ref_count, references of each life, and
--       for a session: pointer of its broadcaster (KEYS 1 again: none), KEYS 1 again
--       for a reference: what the life refers to, what was taken from it
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 grace_ms  8 shards  9 this shard  10 how many suspects, then for each:
--       `s` or `r`  id  its broadcaster, or empty (of a reference: its owner)  incarnation
-- Answers  {now_ms, held_us, owners ended, first receipt, step, codes, [deadline_ms, reason] for each
--          that was reclaimed}
--          codes: R reclaimed, F let go, A alive, S store away, T active, M moved, G gone, U unreadable,
--          L not the leader, D done before
-- O(suspects * log sessions)
--
-- All reads come before the first write, and the first write is the receipt.
local K = base(KEYS)
local now, began = clock()
local sweeper, number, act = ARGV[1], ARGV[2], ARGV[4] == 'reclaim'
local grace, shards, shard, count = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
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

-- Lives, each judged once.
local lives = {}
local function verdict_of(inc)
  local known = lives[inc]
  if not known then
    known = { life = read_life(redis.call('HGET', K.lives, inc)) }
    lives[inc] = known
    local life = known.life
    if not life then
      known.code = 'G'
    elseif life.ending == '-' then
      local deadline = tonumber(redis.call('ZSCORE', K.due, inc) or 0)
      if now < deadline then
        known.code = 'A'
      elseif now < due_at(deadline, life.started, life.ttl, back) then
        known.code = 'S'
      else
        known.deadline = deadline
      end
    end
  end
  return known
end

local done = {} -- the same suspect may come twice
local function judge_reference(s)
  local known = verdict_of(s.inc)
  if known.code then
    return known.code
  end
  s.count = references(s.ref_count)
  if not s.count then
    return 'U'
  end
  s.mine = tonumber(redis.call('HGET', s.refs, s.inc) or 0)
  s.exists = redis.call('EXISTS', s.session) == 1
  if s.mine == 0 or not s.exists then
    s.stale = true
    return 'G'
  end
  return 'F'
end

local function judge_session(s)
  s.fields = redis.pcall('HGETALL', s.session)
  if s.fields.err or #s.fields > 2 * FIELDS_MAX then
    return 'U'
  end
  if #s.fields == 0 then
    s.stale = true
    return 'G'
  end
  local h = {}
  for i = 1, #s.fields, 2 do
    h[s.fields[i]] = s.fields[i + 1]
  end
  local references_now = s.counted == '0' and 0 or references(s.ref_count)
  local gone = to_ms(h.last_disconnect or '0')
  if not references_now or not gone then
    return 'U'
  end
  local since
  if idle then
    since = tonumber(s.score or 0)
    since = since > 0 and idle_since(since, gone) or 0
  else
    -- A reconnect or a new disconnect of the application's is several commands: whichever of them
    -- has arrived counts. Taken out of its index, somebody is coming back; in it with a later time
    -- than its hash says, it is that time.
    local indexed = s.score
    since = indexed and gone > 0 and math.max(gone, to_ms(indexed) or 0) or 0
  end
  if references_now > 0 or since == 0 then
    s.stale = true
    return 'T'
  end
  s.deadline = since + grace
  if now < s.deadline then
    return 'A'
  end
  if now < math.max(since, back) + grace then
    return 'S'
  end
  if (h.broadcaster_user_id or '') ~= s.owner then
    return 'M'
  end
  s.points = s.pointer ~= KEYS[1] and s.pointed == s.id
  s.reason = gone > 0 and 'o' or 'n'
  return 'R'
end

-- What can be read of all sessions at once is.
local suspects, ids, strings, sessions = {}, {}, {}, 0
for n = 1, count do
  local a, k = 7 + 4 * n, 10 + 5 * n
  local s = { kind = ARGV[a], id = ARGV[a + 1], owner = ARGV[a + 2], inc = ARGV[a + 3], session = KEYS[k],
    ref_count = KEYS[k + 1], refs = KEYS[k + 2], pointer = KEYS[k + 3], held = KEYS[k + 3], lost = KEYS[k + 4] }
  suspects[n] = s
  if s.kind == 's' and not no then
    sessions = sessions + 1
    ids[sessions], strings[2 * sessions - 1], strings[2 * sessions] = s.id, s.ref_count, s.pointer
    s.place = sessions
  end
end
if sessions > 0 then
  local scores = every('ZMSCORE', idle or disconnected, ids)
  local values = {}
  for from = 1, #strings, CHUNK do
    local part = redis.call('MGET', unpack(strings, from, math.min(from + CHUNK - 1, #strings)))
    for i = 1, #part do
      values[from + i - 1] = part[i]
    end
  end
  for _, s in ipairs(suspects) do
    if s.place then
      s.score, s.counted, s.pointed = scores[s.place], values[2 * s.place - 1], values[2 * s.place]
    end
  end
end

local codes, reclaimed, found = {}, {}, 0
for n, s in ipairs(suspects) do
  local mark = s.kind .. s.inc .. ':' .. s.id
  if no then
    s.code = no
  elseif done[mark] then
    s.code = 'G'
  else
    s.code = s.kind == 'r' and judge_reference(s) or judge_session(s)
    done[mark] = true
  end
  codes[n] = s.code
  if s.code == 'R' then
    found = found + 1
    reclaimed[found] = s
  end
end

local ended, first, step = 0, 0, 1
if act and not no then
  if #reclaimed > 0 then
    first, step = receipt_numbers(K.meta, #reclaimed, now, shards, shard)
    local common = { 'o', '', 'i', '0', 't', whole(now), 's', sweeper, 'b', number, 'p', step }
    local entry, bytes = { unpack(common) }, 0
    for n, s in ipairs(reclaimed) do
      local at = #entry
      entry[at + 1], entry[at + 2], entry[at + 3], entry[at + 4] = 'k', s.id, 'o', s.owner
      entry[at + 5], entry[at + 6], entry[at + 7], entry[at + 8] = 'd', whole(s.deadline), 'r', s.reason
      entry[at + 9], entry[at + 10] = 'x', s.points and '1' or '0'
      for i = 1, #s.fields, 2 do
        local field, value = s.fields[i], s.fields[i + 1]
        entry[at + 10 + i], entry[at + 11 + i] = 'h:' .. field, value
        bytes = bytes + #field + #value
      end
      if n == #reclaimed or #entry > 2000 or bytes > 65536 then
        redis.call('XADD', K.receipts, whole(first + (n - 1) * step) .. '-0', unpack(entry))
        entry, bytes = { unpack(common) }, 0
      end
    end
    redis.call('HINCRBY', K.meta, 'receipts', #reclaimed)
    if idle then
      redis.call('HINCRBY', K.meta, 'population', 0 - #reclaimed)
    end
    note_batch(K, sweeper, number, first, first + (#reclaimed - 1) * step, now)
  end
  local gone, keys, pointed = {}, {}, {}
  for _, s in ipairs(suspects) do
    if s.kind == 's' then
      if s.code == 'R' then
        local at = #keys
        keys[at + 1], keys[at + 2], keys[at + 3] = s.session, s.ref_count, s.refs
        if s.points then
          keys[at + 4] = s.pointer
          pointed[#pointed + 1] = s.owner
        end
      end
      if s.code == 'R' or s.stale then
        gone[#gone + 1] = s.id
      end
    elseif s.code == 'F' or s.stale then
      local known = lives[s.inc]
      if known.deadline then
        finish(K, s.inc, known.life, 'd', now, known.deadline)
        known.deadline, ended = nil, ended + 1
      end
      if s.code == 'F' then
        -- Another life's references may have been let go in this same batch: read it anew.
        local left = math.max(references(s.ref_count) - s.mine, 0)
        redis.call('HDEL', s.refs, s.inc)
        left = math.max(left, left == 0 and owned_references(s.refs) or 0)
        redis.call('SET', s.ref_count, whole(left), 'KEEPTTL')
        if left == 0 then
          mark_disconnected({ session = s.session, disconnected = disconnected, idle = idle }, s.id, now)
        end
        if redis.call('ZCARD', s.lost) < 1000 then
          redis.call('ZADD', s.lost, 0, s.id)
        end
      elseif not s.exists then
        forget_references(s.refs, s.ref_count, s.inc, s.mine)
      end
      if redis.call('HINCRBY', K.counts, s.inc, 0 - redis.call('ZREM', s.held, s.id)) <= 0 then
        redis.call('ZREM', K.ended, s.inc)
      end
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
  if #reclaimed == 0 then
    local released = false
    for _, s in ipairs(suspects) do
      released = released or s.code == 'F'
    end
    if released then
      note_batch(K, sweeper, number, 1, 0, now)
    end
  end
end

local _, finished = clock()
local answer = { whole(now), whole(finished - began), ended, whole(first), step, table.concat(codes) }
for _, s in ipairs(reclaimed) do
  answer[#answer + 1] = whole(s.deadline)
  answer[#answer + 1] = s.reason
end
return answer
