-- What the scripts of jobs in flight share where the application registers them itself. Comes after the
-- preludes of sessions (times as applications write them), of queues and of jobs in flight.
--
-- `index` (a sorted set: id by the time of its last heartbeat) and `jobs` (a hash: id → the job's
-- JSON) are the application's. Beside them: dead letters (a hash of records, and a sorted set of their
-- ids, all scores 0) and when workers died with a job (a hash, and a sorted set by the last time).
--
-- A dead letter may be kept in Sidekiq's own set of dead jobs (a sorted set: the job's JSON by unix time
-- in seconds). Its record then says where, in the place of an error: `sidekiq:score:sha1 of the member`.

-- The application's lock keeps its own collector out, which removes a job before it pushes it. Several
-- of lapsed need no lock among themselves, since each step is one, so any of them may go on under
-- what another has left: one that was killed is not waited for.
local function lock_value(sweeper)
  return 'lapsed:' .. sweeper
end

local function is_lapsed(holder)
  return string.sub(holder, 1, 7) == 'lapsed:'
end

-- What of a payload matters here. It is only read: written again it would be another one (large
-- numbers, empty arrays, 1.0). Answers its queue, its crash id and whether Sidekiq would keep it among its
-- dead jobs; or nil and why it is no job.
local function read_job(payload, format)
  local ok, job = pcall(cjson.decode, payload)
  if not ok or type(job) ~= 'table' then
    return nil, 'its payload is not a JSON object'
  end
  if format == 'sidekiq' then
    local args = job['args']
    if type(job['class']) ~= 'string' or job['class'] == '' then
      return nil, 'its payload names no class'
    end
    -- An empty object reads like an empty array.
    local array = type(args) == 'table' and (args[1] ~= nil
      or (next(args) == nil and string.find(payload, '"args"%s*:%s*%[')))
    if not array then
      return nil, 'the arguments in its payload are not an array'
    end
  end
  local queue = job['queue']
  if queue == nil or queue == cjson.null then
    queue = 'default'
  end
  if type(queue) ~= 'string' or queue == '' or #queue > 160 or string.find(queue, '%c')
    or string.find(queue, '\194[\128-\159]') then
    return nil, 'the queue in its payload is not a name'
  end
  local jid = job['jid']
  if type(jid) ~= 'string' or jid == '' or #jid > 128 then
    return queue, 's:' .. redis.sha1hex(payload), job['dead'] ~= false
  end
  return queue, 'j:' .. jid, job['dead'] ~= false
end

-- One more death. A job that was put back is taken for dead a threshold later at the earliest: what
-- comes much sooner is another job that looks the same, and died with the same process.
local function note_crash(times, threshold, now)
  local last = tonumber(times[#times] or 0)
  if now - last < threshold / 2 then
    return
  end
  times[#times + 1] = whole(now)
end

-- When a job is dead if it last beat at `score`: nil if that is no time.
local function deadline_of(score, threshold)
  local at = to_ms(score)
  return at and at + threshold, at
end

-- How far the date of a heartbeat may be after the server's present: clocks differ.
local AHEAD_MS = 10000

-- The ranges of scores, one per unit, of heartbeats that are dated later than that. Such a date is no sign of
-- life: its job would not be put back before that date has passed, if ever.
local function ranges_ahead(now)
  local at = now + AHEAD_MS
  return { { '(' .. string.format('%.3f', at / 1000), '(100000000000' }, { '(' .. whole(at), '(+inf' } }
end

-- The present, in the unit of that score.
local function now_as(score, now)
  local n = tonumber(score)
  if n >= 100000000000 then
    return whole(now)
  end
  return n == math.floor(n) and whole(math.floor(now / 1000)) or string.format('%.3f', now / 1000)
end

-- The queue and the payload of a dead letter; nil if there is none.
local function read_letter(record)
  if not record then
    return nil
  end
  local tail = tail_of(record)
  local _, _, _, _, queue, at = read_tail(tail)
  return queue, string.sub(tail, at)
end

-- Where the string ends that begins at `at`, with its quote.
local function string_end(text, at)
  while true do
    at = string.find(text, '["\\]', at + 1)
    if string.byte(text, at) == 34 then
      return at
    end
    at = at + 1
  end
end

-- Where the JSON value ends that begins at `at`.
local function value_end(text, at)
  local depth = 0
  while true do
    local first = string.sub(text, at, at)
    if first == '"' then
      at = string_end(text, at)
    elseif first == '{' or first == '[' then
      depth = depth + 1
    elseif first == '}' or first == ']' then
      depth = depth - 1
    else
      return string.find(text, '[,}%s]', at) - 1
    end
    if depth == 0 then
      return at
    end
    at = string.find(text, '["{}%[%]]', at + 1)
  end
end

-- Where the values of a JSON object's own fields are in its text, and where its last brace is. Only for
-- an object that cjson has read, and that is not empty. O(bytes)
local function places_of(text)
  local places, at = {}, string.find(text, '{', 1, true)
  repeat
    local open = string.find(text, '"', at + 1, true)
    local close = string_end(text, open)
    local from = string.find(text, '[^%s:]', close + 1)
    local to = value_end(text, from)
    places[string.sub(text, open + 1, close - 1)] = { from, to }
    at = string.find(text, '[,}]', to + 1)
  until string.byte(text, at) == 125
  return places, at
end

-- A job as Sidekiq writes it when it gives it up (`attempt_retry`, `send_to_morgue`): with the same fields
-- about the failure. Every other byte is as it was. `at` is the time in seconds, as text.
local function as_failed(payload, message, at)
  local places, brace = places_of(payload)
  local count = places.retry_count
  count = count and string.match(string.sub(payload, count[1], count[2]), '^-?%d+$')
  local fields = {
    { 'error_message', '"' .. string.gsub(message, '[\\"]', '\\%0') .. '"' },
    { 'error_class', '"Lapsed::WorkerDied"' },
    { count and 'retried_at' or 'failed_at', at },
    { 'retry_count', count and whole(tonumber(count) + 1) or '0' },
  }
  local parts, changes = {}, {}
  for _, field in ipairs(fields) do
    local place = places[field[1]]
    if place then
      changes[#changes + 1] = { place[1], place[2], field[2] }
    else
      changes[#changes + 1] = { brace, brace - 1, ',"' .. field[1] .. '":' .. field[2], #changes }
    end
  end
  table.sort(changes, function(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[4] < b[4])
  end)
  local from = 1
  for _, change in ipairs(changes) do
    parts[#parts + 1] = string.sub(payload, from, change[1] - 1)
    parts[#parts + 1] = change[3]
    from = change[2] + 1
  end
  return table.concat(parts) .. string.sub(payload, from)
end

-- What Sidekiq's users read about a job that is given up.
local function failure_words(why, id, crashes)
  local words = 'its worker died'
  if why == 'c' then
    words = whole(crashes) .. (crashes == 1 and ' worker' or ' workers') .. ' died with this job'
  elseif why == 'o' then
    words = 'its worker had been dead for too long to run it again'
  elseif why == 'q' then
    words = 'its worker died, and jobs of its class are in quarantine'
  end
  return words .. '; lapsed does not put it back again (request ' .. id .. ')'
end

-- Where Sidekiq's set has the job of a dead letter's record: its score and its sha1. nil: not there.
local function place_in_set(record)
  local size, at = string.match(record, '^d%a:%d+:(%d+):()')
  return string.match(string.sub(record, at, at + tonumber(size) - 1), '^sidekiq:([%d.]+):(%x+)$')
end

-- The member of that set; nil if it is not there any more.
-- O(log dead jobs + bytes of those with the same score)
local function member_of(set, score, sha)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', set, score, score)) do
    if redis.sha1hex(member) == sha then
      return member
    end
  end
  return nil
end

-- Keys that the application lets expire live on: what is tracked must not go while somebody is at
-- work on it. Never shorter than before, and never an end where there was none.
local function renew(keys, ttl_s)
  for _, key in ipairs(keys) do
    local left = redis.call('PTTL', key)
    if left >= 0 and left < ttl_s * 500 then
      redis.call('EXPIRE', key, ttl_s)
    end
  end
end
