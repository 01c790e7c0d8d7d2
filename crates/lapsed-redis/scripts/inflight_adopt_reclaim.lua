-- The decisive step for jobs that the application registered: guard, receipt, and the job is where it
-- goes.
-- KEYS  the base keys, then: 12 index  13 jobs  14 gc_lock  15 dead letters  16 their ids  17 crashes
--       18 crashes by time  19 names of queues  20 details  21 details by time (KEYS 1 again: none)
--       then the queues, then the keys by which processes say that they live
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 threshold_ms  8 TTL of the lock in s  9 TTL of the application's keys in s  10 format of the
--       queues  11 way  12 crashes_max  13 crash_window_ms  14 age_max_ms  15 how many
--       queues  16 how many suspects  17 where dead letters go: `sidekiq` or `lapsed`
--       18 the queue of way `m`, or empty
--       then the names of the queues (`\1dead`: Sidekiq's set of dead jobs, which is no queue), then for
--       each suspect: id, which of the processes (0: none)
-- Answers  {'again', names of queues that are needed and were not named}: nothing was done
--          {now_ms, held_us, first receipt, codes, then in order for each that was reclaimed: deadline_ms
--           and what the receipt says; for each N and U: why}
--          codes: R reclaimed, A alive, S store away, G gone, B the application holds the lock, N not taken,
--          U unreadable, L not the leader, D done before
-- O(suspects * log jobs + their bytes)
--
-- All reads come before the first write, and the first writes are the lock and the receipt.
local K = base(KEYS)
local now, began = clock()
local index, jobs, lock, dead, dead_ids = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local crashes, crashes_at, names_key = KEYS[17], KEYS[18], KEYS[19]
local sweeper, number, act = ARGV[1], ARGV[2], ARGV[4] == 'reclaim'
local threshold, lock_ttl, keys_ttl, format = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9]), ARGV[10]
local rule = { way = ARGV[11], crashes_max = tonumber(ARGV[12]), age_max = tonumber(ARGV[14]) }
local window, queues, count = tonumber(ARGV[13]), tonumber(ARGV[15]), tonumber(ARGV[16])
local to_sidekiq, move_to, DEAD_SET = ARGV[17] == 'sidekiq', ARGV[18], '\1dead'
local details = {}
for _, key in ipairs({ KEYS[20], KEYS[21] }) do
  details[#details + 1] = key ~= KEYS[1] and key or nil
end
local has_details = #details == 2
local back = presence(K.meta, now, tonumber(ARGV[5]), tonumber(ARGV[6]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local no = act and refused(K.meta, K.batches, sweeper, number, ARGV[3], now) or nil
local holder = redis.call('GET', lock)
if not no and holder and not is_lapsed(holder) then
  no = 'B'
end
if act then
  local no_way = may_write({ { 'ZREM', index, 'x' }, { 'HDEL', jobs, 'x' }, { 'EXPIRE', index, '1' },
    { 'SET', lock, 'x' }, { 'HSET', dead, 'x', 'x' }, { 'ZADD', dead_ids, '0', 'x' }, { 'HSET', crashes, 'x', 'x' },
    { 'HINCRBY', K.meta, 'x', '1' }, { 'HDEL', K.meta, 'x' }, { 'HSET', K.meta, 'x', 'x' }, { 'XADD', K.receipts, '1-0', 'x', 'x' } })
  if no_way then
    return no_way
  end
  redis.call('XLEN', K.receipts)
  must_be({ jobs, dead, crashes, K.batches }, { index, dead_ids, crashes_at, K.batches_at })
  if has_details then
    must_be({ details[1] }, { details[2] })
  end
end

-- Each queue and each process is read once, and only if a job needs it.
local queue_of = {}
for n = 1, queues do
  queue_of[ARGV[18 + n]] = { name = ARGV[18 + n], key = KEYS[21 + n], payloads = {} }
end
local function takes(queue)
  if queue.takes == nil then
    if queue.key == KEYS[1] then
      queue.takes, queue.why = false, 'the queue in its payload is not a name'
    else
      queue.takes, queue.why = queue_takes(format, queue.key, names_key)
    end
  end
  return queue.takes
end
local function dead_set_takes(set)
  if set.takes == nil then
    local kind = redis.call('TYPE', set.key).ok
    set.takes = kind == 'none' or kind == 'zset'
    set.why = 'WRONGTYPE the key `' .. set.key .. '` is a ' .. kind .. ', not a sorted set'
    for _, command in ipairs({ { 'ZADD', set.key, '1', 'x' }, { 'ZREM', set.key, 'x' } }) do
      if not redis.acl_check_cmd(unpack(command)) then
        set.takes, set.why = false, 'NOPERM this user may not call ' .. command[1] .. ' on `' .. set.key .. '`'
      end
    end
  end
  return set.takes
end
local living = {}
local function lives(process)
  if process == 0 then
    return false
  end
  if living[process] == nil then
    living[process] = redis.call('EXISTS', KEYS[21 + queues + process]) == 1
  end
  return living[process]
end

-- Whether it is dead, by its last heartbeat.
local function judge_life(s, score)
  if not score then
    return 'G'
  end
  local at
  s.deadline, at = deadline_of(score, threshold)
  if not s.deadline then
    s.text = 'the time of its last heartbeat is none'
    return 'U'
  end
  if now < s.deadline or lives(s.process) then
    return 'A'
  end
  if now < math.max(at, back) + threshold then
    return 'S'
  end
  return nil
end

local logs = {} -- by crash id; of one job there may be two entries
local missing, is_missing = {}, {}
local function needed(name)
  if not queue_of[name] and not is_missing[name] then
    missing[#missing + 1], is_missing[name] = name, true
  end
  return queue_of[name]
end

-- A job becomes a dead letter: nil, or the code of why it cannot.
local function judge_letter(s)
  local record = redis.call('HGET', dead, s.id)
  local score, sha
  if record then
    score, sha = place_in_set(record)
  end
  s.to_sidekiq = to_sidekiq and s.is_kept
  if s.to_sidekiq or score then
    local set = needed(DEAD_SET)
    if not set then
      return 'N'
    elseif not dead_set_takes(set) then
      s.text = set.why
      return 'N'
    end
    s.replaced = score and member_of(set.key, score, sha)
    if score and not s.replaced then
      return nil
    end
  end
  local queue, payload = read_letter(record)
  if queue and payload ~= s.payload then
    s.text = 'there is another dead letter of this id'
    return 'N'
  end
  return nil
end

local function judge_job(s)
  local times = counting(logs[s.crash_id] or '', window, now)
  note_crash(times, threshold, now)
  local moved
  s.did, s.extra, moved = decide(rule, '', '', true, #times, now - s.deadline)
  if s.did == 'd' then
    local no_letter = judge_letter(s)
    if no_letter then
      return no_letter
    end
  elseif s.did == 'p' then
    s.target = needed(moved and move_to or s.queue)
    if not s.target then
      return 'N'
    end
    if not takes(s.target) then
      s.text = s.target.why
      return 'N'
    end
  end
  local log = table.concat(times, ',')
  logs[s.crash_id] = log
  s.crashes = #times
  s.note = s.did .. (s.did == 'd' and s.extra or '') .. (s.to_sidekiq and 's' or '') .. ':0:' .. #times .. ':' .. s.queue
    .. (moved and '\1' .. move_to or '')
  if s.did ~= 'p' then
    s.tail = pack_tail('0', '', '', log, s.queue, s.payload)
  end
  return 'R'
end

local suspects, ids, seen = {}, {}, {}
for n = 1, count do
  local at = 17 + queues + 2 * n
  suspects[n] = { id = ARGV[at], process = tonumber(ARGV[at + 1]) }
  ids[n] = ARGV[at]
end
local scores = no and {} or every('ZMSCORE', index, ids)
local due = {}
for n, s in ipairs(suspects) do
  s.code = no or (seen[s.id] and 'G') or judge_life(s, scores[n])
  seen[s.id] = true
  if not s.code then
    due[#due + 1] = s
  end
end
local due_ids = {}
for n, s in ipairs(due) do
  due_ids[n] = s.id
end
local payloads = every('HMGET', jobs, due_ids)
local gone, readable, crash_ids = {}, {}, {}
for n, s in ipairs(due) do
  s.payload = payloads[n]
  if not s.payload then
    s.code = 'G'
    gone[#gone + 1] = s.id
  else
    s.queue, s.crash_id, s.is_kept = read_job(s.payload, format)
    if s.queue then
      readable[#readable + 1], crash_ids[#crash_ids + 1] = s, s.crash_id
    else
      s.code, s.text = 'U', s.crash_id
    end
  end
end
local known = redis.call('HLEN', crashes) > 0 and every('HMGET', crashes, crash_ids) or {}
for n, id in ipairs(crash_ids) do
  logs[id] = known[n] or nil
end
local reclaimed = {}
for _, s in ipairs(readable) do
  s.code = judge_job(s)
  if s.code == 'R' then
    reclaimed[#reclaimed + 1] = s
    gone[#gone + 1] = s.id
  end
end
if #missing > 0 then
  table.insert(missing, 1, 'again')
  return missing
end

local first = 0
local function write_receipts()
  first = numbers(K.meta, 'receipt', #reclaimed) + 1
  local common = { 'o', '', 'i', '0', 'r', 'd', 't', whole(now), 's', sweeper, 'b', number, 'p', 1 }
  local entry, bytes = { unpack(common) }, 0
  for n, s in ipairs(reclaimed) do
    local at = #entry
    entry[at + 1], entry[at + 2], entry[at + 3], entry[at + 4] = 'k', s.id, 'o', string.match(s.id, '^([^/]+)/') or ''
    entry[at + 5], entry[at + 6], entry[at + 7], entry[at + 8] = 'd', whole(s.deadline), 'j', s.note
    if s.did == 'x' then
      entry[at + 9], entry[at + 10] = 'y', s.tail
      bytes = bytes + #s.tail
    end
    if n == #reclaimed or #entry > 2000 or bytes > 65536 then
      redis.call('XADD', K.receipts, whole(first + n - 1) .. '-0', unpack(entry))
      entry, bytes = { unpack(common) }, 0
    end
  end
  redis.call('HINCRBY', K.meta, 'receipts', #reclaimed)
  local deadlines = {}
  for n, s in ipairs(reclaimed) do
    deadlines[n] = s.deadline
  end
  note_deaths(K.meta, now, threshold, deadlines)
  note_batch(K, sweeper, number, first, first + #reclaimed - 1, now)
end

-- Where they go, each queue and each key with one command.
local function put_all()
  local now_text = whole(now)
  local letters, ids_of, log, log_at, dropped, order = {}, {}, {}, {}, 0, {}
  local replaced, to_set = {}, {}
  for _, s in ipairs(reclaimed) do
    log[#log + 1], log[#log + 2] = s.crash_id, logs[s.crash_id]
    log_at[#log_at + 1], log_at[#log_at + 2] = now_text, s.crash_id
    if s.did == 'p' then
      if #s.target.payloads == 0 then
        order[#order + 1] = s.target
      end
      s.target.payloads[#s.target.payloads + 1] = s.payload
    elseif s.did == 'd' then
      local place = ''
      if s.to_sidekiq then
        -- A score of its own for each: Sidekiq finds a dead job by its score.
        local at = string.format('%.6f', (began + #to_set / 2) / 1000000)
        local member = as_failed(s.payload, failure_words(s.extra, s.id, s.crashes), at)
        to_set[#to_set + 1], to_set[#to_set + 2] = at, member
        place = 'sidekiq:' .. at .. ':' .. redis.sha1hex(member)
      end
      replaced[#replaced + 1] = s.replaced
      letters[#letters + 1], letters[#letters + 2] = s.id, pack_dead(s.extra, now, place, s.tail)
      ids_of[#ids_of + 1] = s.id
    else
      dropped = dropped + 1
    end
  end
  each('HSET', crashes, log)
  each('ZADD', crashes_at, log_at)
  each('HSET', dead, letters)
  each('ZADD', dead_ids, members(ids_of))
  if queue_of[DEAD_SET] then
    each('ZREM', queue_of[DEAD_SET].key, replaced)
    each('ZADD', queue_of[DEAD_SET].key, to_set)
  end
  if dropped > 0 then
    redis.call('HINCRBY', K.meta, 'dropped', dropped)
  end
  for _, queue in ipairs(order) do
    if format ~= 'sidekiq' then
      redis.call('SADD', names_key, queue.name)
    end
    queue_put(format, queue.key, names_key, queue.name, queue.payloads, rule.way == 'f')
  end
end

if act and not no then
  if #gone > 0 then
    redis.call('SET', lock, lock_value(sweeper), 'EX', lock_ttl)
    if #reclaimed > 0 then
      write_receipts()
    end
    each('ZREM', index, gone)
    each('HDEL', jobs, gone)
    if has_details then
      each('HDEL', details[1], gone)
      each('ZREM', details[2], gone)
    end
    put_all()
  end
  renew({ index, jobs, unpack(details) }, keys_ttl)
end

local codes = {}
for n, s in ipairs(suspects) do
  codes[n] = s.code
end
local _, done = clock()
local answer = { whole(now), whole(done - began), whole(first), table.concat(codes) }
for _, s in ipairs(suspects) do
  if s.code == 'R' then
    answer[#answer + 1] = whole(s.deadline)
    answer[#answer + 1] = s.note
  elseif s.text then
    answer[#answer + 1] = s.text
  end
end
return answer
