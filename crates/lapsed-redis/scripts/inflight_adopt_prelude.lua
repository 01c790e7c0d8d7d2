-- What the scripts of jobs in flight share where the application registers them itself. Comes after the
-- preludes of sessions (times as applications write them), of queues and of jobs in flight.
--
-- `index` (a sorted set: id by the time of its last heartbeat) and `jobs` (a hash: id → the job's
-- JSON) are the application's. Beside them: dead letters (a hash of records, and a sorted set of their
-- ids, all scores 0) and when workers died with a job (a hash, and a sorted set by the last time).

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
-- numbers, empty arrays, 1.0). Answers its queue and its crash id, or nil and why it is no job.
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
    return queue, 's:' .. redis.sha1hex(payload)
  end
  return queue, 'j:' .. jid
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

-- The queue and the payload of a dead letter; nil if there is none.
local function read_letter(record)
  if not record then
    return nil
  end
  local tail = tail_of(record)
  local _, _, _, _, queue, at = read_tail(tail)
  return queue, string.sub(tail, at)
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
