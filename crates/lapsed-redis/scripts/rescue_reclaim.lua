-- The decisive step for jobs of a foreign job system: guard, receipt, and the job is where the system's own code would
-- put it. In front of this stands the part of one system (`src/rescue/SYSTEM/put_back.lua`), which defines
--   TYPES               the type of each of a suspect's keys
--   WRITES              the commands that it may call, each with the number of its key
--   judge(s, at)        nil if the job's worker is dead, and then s.deadline is set, and s.payload or s.read_payload, which
--                       is called only if the receipt keeps the payload (it may have megabytes); or a code, and s.text with U. May set s.place (`s`: dead letters are in Sidekiq's set) and s.sure (a digit for
--                       how sure it is that the worker held the job; see `recovered` in records.rs). s.own_did and
--                       s.own_extra, if they are set, replace what the policy decides. s.crash_id, if it is set, is what crashes
--                       are counted by instead of s.id. s.crash_gap, if it is set with s.began: a job that was begun (by its
--                       worker's clock) before the last crash, which was so many milliseconds ago at most, is another one that nothing
--                       tells from the first, and is not counted
--   put_back(s, at, front)  the job waits on its queue again; if s.to is set, on the queue of that name, whose key is
--                       s.to_key. Sets s.next_id if the job has another id from now on
--   delay(s, at)        only where jobs can be delayed: the job waits until s.due, a time in milliseconds, and then on its queue, or
--                       on s.to. DELAYED has the types of the keys s.delayed, and the commands that it may call on them. judge may
--                       set s.no_delay: then the job is put back at once
--   bury(s, at, why)    the job is where the system keeps jobs that it will not run again by itself. May set s.letter, by which `letters.lua`
--                       finds it there
--   discard(s, at)      the job is gone
--   after(s, at)        called once for each that was judged G, or for which judge set s.later: removes what points to
--                       nothing, prepares the next pass, or does nothing
--   came_after(s, at)   whether the job's worker is known to have come after the server was back (at.back), so that its
--                       silence has nothing to do with the server's absence
-- KEYS  the base keys, then: 12 crashes  13 crashes by time  14 silence (when somebody was first found without a sign
--       of life)  15 deaths (whose jobs were put back, by time)
--       16 letters (hash: what `rescue_letters.lua` needs to know of each job that was given up); then the keys of the suspects, each once
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 grace_ms after an absence of the server  8 limit_ms of silence  9 way  10 crashes_max  11 crash_window_ms
--       12 age_max_ms  13 how many suspects  14 keys of each  15 words of each that its system needs  16 the queue
--       that jobs are moved to, or empty; then each suspect has a key more: that queue
--       17 for how long a job waits after its first crash, or 0  18 for how long at most; then each suspect
--       has the keys more that a delayed job is written to
--       19 a letter for each suspect, `q` if jobs of its class are in quarantine; or empty
--       20 the suspects, as MessagePack: one array with, for each, id, owner, queue, the numbers of its keys among those of the
--       suspects, and what its system needs
-- Answers  {now_ms, held_us, first receipt, codes, then in order for each that was reclaimed: deadline_ms
--           and what the receipt says; for each U: why}
--          codes: R reclaimed, A alive, S store away, G gone, U unreadable, L not the leader, D done before
-- O(suspects * what the system's own put-back costs)
--
-- All reads come before the first write, and the first write is the receipt.
local K = base(KEYS)
local now, began = clock()
local sweeper, number, act = ARGV[1], ARGV[2], ARGV[4] == 'reclaim'
local crashes, crashes_at, deaths, letters = KEYS[12], KEYS[13], KEYS[15], KEYS[16]
local LETTER_WORD_MAX = 1000
local at = { now = now, grace = tonumber(ARGV[7]), limit = tonumber(ARGV[8]), act = act, silence = KEYS[14],
  count = tonumber(ARGV[13]) }
local rule = { way = ARGV[9], crashes_max = tonumber(ARGV[10]), age_max = tonumber(ARGV[12]) }
local delay_first, delay_max = tonumber(ARGV[17]), tonumber(ARGV[18])
local window, count = tonumber(ARGV[11]), at.count
local keys_each, words_each = tonumber(ARGV[14]), tonumber(ARGV[15])
local move_to = ARGV[16]
at.delays = delay_first > 0
local types = { unpack(TYPES) }
if move_to ~= '' then
  types[#types + 1] = 'list'
end
for _, kind in ipairs(at.delays and DELAYED.types or {}) do
  types[#types + 1] = kind
end
local back = presence(K.meta, now, tonumber(ARGV[5]), tonumber(ARGV[6]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
at.back = back
local no = act and refused(K.meta, K.batches, sweeper, number, ARGV[3], now) or nil
local is_grace = now < back + at.grace

local suspects, packed, place = {}, cmsgpack.unpack(ARGV[20]), 0
for n = 1, count do
  local s = { keys = {}, words = {}, id = packed[place + 1], owner = packed[place + 2], queue = packed[place + 3] }
  place = place + 3
  for i = 1, #types do
    s.keys[i] = KEYS[16 + packed[place + i]]
  end
  place = place + #types
  for i = 1, words_each do
    s.words[i] = packed[place + i]
  end
  place = place + words_each
  s.to_key = move_to ~= '' and s.keys[keys_each + 1] or nil
  s.delayed = at.delays and { unpack(s.keys, keys_each + (s.to_key and 2 or 1)) }
  s.is_quarantined = string.sub(ARGV[19], n, n) == 'q'
  suspects[n] = s
end

-- Each key is looked at once: a script is not undone when a command in its middle is refused.
local function is_usable(s)
  for i, key in ipairs(s.keys) do
    local kind = kind_of(key)
    if kind ~= 'none' and kind ~= types[i] then
      s.text = '`' .. key .. '` is a ' .. kind .. ', not a ' .. types[i]
      return false
    end
  end
  return true
end

-- When workers died with each job.
local known_crashes
local function crashes_of(n)
  if not known_crashes then
    local ids = {}
    for i, s in ipairs(suspects) do
      ids[i] = s.id
    end
    known_crashes = every('HMGET', crashes, ids)
  end
  return known_crashes[n] or ''
end

-- The text of a time. Most jobs of a batch have the same ones.
local texts = {}
local function text_of(time)
  local text = texts[time]
  if not text then
    text = whole(time)
    texts[time] = text
  end
  return text
end
if act and not no then
  local first = suspects[1]
  local wanted = { { 'HSET', crashes, 'x', 'x' }, { 'ZADD', crashes_at, '0', 'x' }, { 'HDEL', at.silence, 'x' },
    { 'ZADD', deaths, '0', 'x' }, { 'HSET', letters, 'x', 'x' },
    { 'HINCRBY', K.meta, 'x', '1' }, { 'XADD', K.receipts, '1-0', 'x', 'x' } }
  local function want(writes, keys)
    for _, write in ipairs(writes) do
      local command = { write[1], keys[write[2]] }
      for i = 3, #write do
        command[i] = write[i]
      end
      wanted[#wanted + 1] = command
    end
  end
  if first then
    want(WRITES, first.keys)
    want(at.delays and DELAYED.writes or {}, first.delayed)
  end
  if first and first.to_key then
    wanted[#wanted + 1] = { 'RPUSH', first.to_key, 'x' }
    wanted[#wanted + 1] = { 'LPUSH', first.to_key, 'x' }
  end
  local no_way = may_write(wanted)
  if no_way then
    return no_way
  end
  redis.call('XLEN', K.receipts)
  must_be({ crashes, at.silence, letters, K.batches }, { crashes_at, deaths, K.batches_at })
end

local reclaimed, gone, seen = {}, {}, {}
for n, s in ipairs(suspects) do
  s.code = no or (seen[s.id] and 'G') or (not is_usable(s) and 'U')
  if not s.code then
    s.code = is_grace and not came_after(s, at) and 'S' or judge(s, at)
  end
  seen[s.id] = true
  if (s.code == 'G' or s.later) and not no then
    gone[#gone + 1] = s
  elseif not s.code then
    local known = s.crash_id and (redis.call('HGET', crashes, s.crash_id) or '') or crashes_of(n)
    local times = counting(known, window, now)
    local last = tonumber(times[#times])
    if not (s.crash_gap and last and now - last < s.crash_gap and s.began < last) then
      times[#times + 1] = text_of(now)
    end
    local moved
    s.did, s.extra, moved = decide(rule, '', '', true, #times, now - s.deadline)
    s.to = moved and move_to or nil
    if at.delays and s.did == 'p' and not s.no_delay then
      -- As `Backoff::delay_ms`.
      s.due = now + math.min(delay_first * 2 ^ math.min(#times - 1, 40), delay_max)
    end
    if s.own_did then
      s.did, s.extra, s.to, s.due = s.own_did, s.own_extra, nil, nil
    end
    if s.is_quarantined then
      s.did, s.extra, s.to, s.due, s.own_did = 'd', 'q', nil, nil, nil
    end
    s.log = table.concat(times, ',')
    s.note = s.did .. (s.did == 'd' and s.extra .. (s.place or '') or '') .. (s.sure or '') .. ':0:' .. #times .. ':' .. s.queue
      .. (s.to and '\1' .. s.to or '') .. (s.due and '\2' .. whole(s.due) or '')
    s.code = 'R'
    reclaimed[#reclaimed + 1] = s
  end
end

local first = 0
local function write_receipts()
  first = numbers(K.meta, 'receipt', #reclaimed) + 1
  local common = { 'o', '', 'i', '0', 'r', 'd', 't', whole(now), 's', sweeper, 'b', number, 'p', 1 }
  local entry, bytes = { unpack(common) }, 0
  for n, s in ipairs(reclaimed) do
    local i = #entry
    entry[i + 1], entry[i + 2], entry[i + 3], entry[i + 4] = 'k', s.id, 'o', s.owner
    entry[i + 5], entry[i + 6], entry[i + 7], entry[i + 8] = 'd', text_of(s.deadline), 'j', s.note
    if s.did == 'x' then
      local tail = pack_tail('0', '', '', s.log, s.queue, s.payload or s.read_payload())
      entry[i + 9], entry[i + 10] = 'y', tail
      bytes = bytes + #tail
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
  note_deaths(K.meta, now, at.grace, deadlines)
  note_batch(K, sweeper, number, first, first + #reclaimed - 1, now)
end

local failed
if act and #reclaimed > 0 then
  write_receipts()
  local log, log_at, died, dead = {}, {}, {}, {}
  -- A server does not undo a script that fails: an error with one job must not keep the others from their queues.
  local function carry_out(s)
    if s.did == 'p' and s.due then
      delay(s, at)
    elseif s.did == 'p' then
      put_back(s, at, s.extra)
    elseif s.did == 'd' then
      bury(s, at, s.extra)
    else
      discard(s, at)
    end
  end
  -- A letter keeps no word that may be the job itself.
  local function remember(s)
    local words = {}
    for i, word in ipairs(s.words) do
      words[i] = #word <= LETTER_WORD_MAX and word or ''
    end
    local keys = { unpack(s.keys, 1, keys_each) }
    redis.call('HSET', letters, s.id, cmsgpack.pack({ whole(now), s.owner, s.note, s.queue, s.letter or '', keys, words }))
  end
  for _, s in ipairs(reclaimed) do
    local is_done, why = pcall(carry_out, s)
    failed = failed or (not is_done and why) or nil
    if is_done and s.did == 'd' then
      remember(s)
    end
    local id = s.next_id or s.crash_id or s.id
    log[#log + 1], log[#log + 2] = id, s.log
    log_at[#log_at + 1], log_at[#log_at + 2] = text_of(now), id
    if not dead[s.owner] then
      dead[s.owner] = true
      died[#died + 1], died[#died + 2] = text_of(now), s.owner
    end
  end
  each('HSET', crashes, log)
  each('ZADD', crashes_at, log_at)
  -- More than are added at a time, so that those before the window end.
  local old = redis.call('ZRANGEBYSCORE', crashes_at, '-inf', whole(now - window), 'LIMIT', 0, #reclaimed + 100)
  each('ZADD', deaths, died)
  redis.call('ZREMRANGEBYSCORE', deaths, '-inf', whole(now - at.grace))
  each('HDEL', crashes, old)
  each('ZREM', crashes_at, old)
end
if act then
  for _, s in ipairs(gone) do
    after(s, at)
  end
  call_gathered()
  if failed then
    error(failed)
  end
end

local codes = {}
for n, s in ipairs(suspects) do
  codes[n] = s.code
end
local _, done = clock()
local answer = { whole(now), whole(done - began), whole(first), table.concat(codes) }
for _, s in ipairs(suspects) do
  if s.code == 'R' then
    answer[#answer + 1] = text_of(s.deadline)
    answer[#answer + 1] = s.note
  elseif s.code == 'U' then
    answer[#answer + 1] = s.text or 'it cannot be read'
  end
end
return answer
