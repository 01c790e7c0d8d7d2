-- BullMQ 5 and 6: a job that is being worked on is in the list `active`, and lives while its key `ID:lock` exists. Worker
-- and lock are one script of BullMQ at the start, and the worker renews the lock.
-- KEYS of a suspect   1 active (list)  2 ID:lock (string)  3 stalled (set)  4 ID (hash)  5 wait (list)  6 paused (list)
--                     7 meta (hash)  8 marker (sorted set)  9 events (stream)  10 repeat (sorted set)
--                     11 failed (sorted set)
-- Words of a suspect  1 id of the job  2 major version  3 maxStalledCount  4 `later` if workers of this version fail a job with
--                     the field `defa` without running it (from 5.49.2 on), `now` if they do not know it
-- O(place of the job in `active`, counted from the oldest) for each suspect
--
-- Who can come in between: the worker's completion (it needs the lock), BullMQ's own check for stalled jobs (it removes
-- the id from `active`). Each is one script, and this one reads lock and list again. Locks are never
-- written here, so that a worker that was frozen is refused by BullMQ when it completes the job late.
local TYPES = { 'list', 'string', 'set', 'hash', 'list', 'list', 'hash', 'zset', 'stream', 'zset', 'zset' }
local WRITES = { { 'LREM', 1, '0', 'x' }, { 'SREM', 3, 'x' }, { 'HINCRBY', 4, 'x', '1' }, { 'HSET', 4, 'x', 'x' },
  { 'RPUSH', 5, 'x' }, { 'LPUSH', 5, 'x' }, { 'RPUSH', 6, 'x' }, { 'ZADD', 8, '0', 'x' }, { 'XADD', 9, '*', 'x', 'x' },
  { 'ZADD', 11, '0', 'x' } }
local DELAYED = { types = { 'zset' }, writes = { { 'ZADD', 1, '0', 'x' }, { 'ZRANGE', 1, '0', '0' },
  { 'ZREVRANGEBYSCORE', 1, '0', '0' } } }
local STALLED = 'job stalled more than allowable limit'

local function judge(s, at)
  -- A lock that is gone does not say since when; what was noted when it was first missed does.
  s.deadline = tonumber(silent_since(s.owner, at) or (at.act and at.now or at.now - at.limit))
  if kind_of(s.keys[2]) ~= 'none' or at.now < s.deadline + at.limit then
    return 'A'
  end
  if not is_listed(s.keys[1], s.words[1], at) then
    return 'G'
  end
  if kind_of(s.keys[4]) == 'none' then
    s.dangling = true
    return 'G'
  end
  local job = redis.call('HMGET', s.keys[4], 'stc', 'parentKey', 'deid')
  -- A script is not undone when HINCRBY refuses.
  if job[1] and not string.match(job[1], '^%-?%d+$') then
    s.text = '`stc` of `' .. s.keys[4] .. '` is not a number'
    return 'U'
  end
  s.stalls = tonumber(job[1] or 0)
  s.is_plain = not job[2] and not job[3]
  if s.words[4] == 'now' and not s.is_plain and (s.is_quarantined or s.stalls + 1 > tonumber(s.words[3])) then
    s.text = 'it has a parent or a deduplication key, and workers of this version do not fail it without running it'
    return 'U'
  end
  s.read_payload = function()
    return redis.call('HGET', s.keys[4], 'data') or ''
  end
  return nil
end

-- Jobs of a job scheduler are never failed for stalling.
local function is_scheduled(s)
  local rjk = redis.call('HGET', s.keys[4], 'rjk')
  return rjk and (redis.call('ZSCORE', s.keys[10], rjk) or redis.call('EXISTS', s.keys[10] .. ':' .. rjk) == 1)
end

-- Takes the job out of `active`. The oldest are at the end.
local function take_out(s)
  redis.call('LREM', s.keys[1], '-1', s.words[1])
  gather('SREM', s.keys[3], s.words[1])
end

-- Whether the queue is paused, `concurrency`, and how many events are kept.
local metas = {}
local function meta_of(s)
  local meta = metas[s.keys[7]]
  if not meta then
    meta = redis.call('HMGET', s.keys[7], 'paused', 'concurrency', 'opts.maxLenEvents')
    metas[s.keys[7]] = meta
  end
  return meta
end

local function tell(s, ...)
  redis.call('XADD', s.keys[9], 'MAXLEN', '~', meta_of(s)[3] or '10000', '*', ...)
end

-- As BullMQ before 5.53.2, whose check for stalled jobs fails them itself. A parent that waits for the job, or a key against
-- doubles, would have to be told, too: such a job is left where it is.
local function fail_now(s, at)
  take_out(s)
  redis.call('HSET', s.keys[4], 'failedReason', STALLED, 'finishedOn', whole(at.now))
  redis.call('ZADD', s.keys[11], whole(at.now), s.words[1])
  tell(s, 'event', 'failed', 'jobId', s.words[1], 'prev', 'active', 'failedReason', STALLED)
end

-- As `moveStalledJobsToWait` of BullMQ. Whether the job has failed, instead of going anywhere.
local function count_stall(s, at)
  redis.call('HINCRBY', s.keys[4], 'stc', 1)
  if s.stalls + 1 <= tonumber(s.words[3]) or is_scheduled(s) then
    return false
  end
  if s.words[4] == 'now' and s.is_plain then
    fail_now(s, at)
    return true
  end
  redis.call('HSET', s.keys[4], 'defa', STALLED)
  return false
end

-- Idle workers of a queue are woken once for all of its jobs.
local marked = {}
local function move_to_wait(s, front)
  local meta = meta_of(s)
  local to = (meta[1] and s.words[2] == '5') and s.keys[6] or s.keys[5]
  take_out(s)
  gather(front and 'RPUSH' or 'LPUSH', to, s.words[1])
  local full = meta[2] and redis.call('LLEN', s.keys[1]) >= tonumber(meta[2])
  if not meta[1] and not full then
    marked[s.keys[8]] = marked[s.keys[8]] or redis.call('ZADD', s.keys[8], '0', '0')
  end
  tell(s, 'event', 'waiting', 'jobId', s.words[1], 'prev', 'active')
  tell(s, 'event', 'stalled', 'jobId', s.words[1])
end

local function put_back(s, at, front)
  if not count_stall(s, at) then
    move_to_wait(s, front)
  end
end

-- As `moveToDelayed` of BullMQ. The score is the time and a number of 12 bits, so that jobs of one millisecond keep their order.
local function delay(s, at)
  if count_stall(s, at) then
    return
  end
  take_out(s)
  local first, last = s.due * 4096, (s.due + 1) * 4096 - 1
  local before = redis.call('ZREVRANGEBYSCORE', s.delayed[1], whole(last), whole(first), 'WITHSCORES', 'LIMIT', '0', '1')
  local score = before[2] and math.min(tonumber(before[2]) + 1, last) or first
  redis.call('HSET', s.keys[4], 'delay', whole(s.due - at.now))
  redis.call('ZADD', s.delayed[1], whole(score), s.words[1])
  tell(s, 'event', 'delayed', 'jobId', s.words[1], 'delay', whole(s.due))
  tell(s, 'event', 'stalled', 'jobId', s.words[1])
  local soonest = redis.call('ZRANGE', s.delayed[1], '0', '0', 'WITHSCORES')
  redis.call('ZADD', s.keys[8], string.format('%.3f', tonumber(soonest[2]) / 4096), '1')
end

-- BullMQ fails such a job by letting a worker take it once more: the worker fails it without running it.
local function bury(s, at)
  redis.call('HINCRBY', s.keys[4], 'stc', 1)
  if s.words[4] == 'now' and s.is_plain then
    return fail_now(s, at)
  end
  redis.call('HSET', s.keys[4], 'defa', STALLED)
  move_to_wait(s, true)
end

local function discard(s)
  take_out(s)
  redis.call('DEL', s.keys[4])
end

-- An id in `active` whose job was removed.
local function after(s)
  if s.dangling then
    take_out(s)
  end
end

-- Its sign of life says nothing about when the worker came.
local function came_after()
  return false
end
