-- RQ 2: a job that is being worked on is a member `ID:EXECUTION` of `rq:wip:QUEUE`, whose score is the end of its last
-- heartbeat. Between taking and starting, its id may be in `rq:queue:QUEUE:intermediate`. A worker (and its work horse, which
-- inherits the socket) is subscribed to `rq:pubsub:WORKER` for as long as it lives.
-- KEYS of a suspect   1 rq:wip:QUEUE (sorted set)  2 rq:job:ID (hash)  3 rq:execution:ID:EXECUTION (hash)
--                     4 rq:executions:ID (sorted set)  5 rq:queue:QUEUE (list)  6 rq:queue:QUEUE:intermediate (list)
--                     7 rq:queues (set)  8 rq:failed:QUEUE (sorted set)  9 rq:worker:WORKER (hash)  10 rq:results:ID (stream)
--                     11 rq:scheduled:QUEUE (sorted set)  12 rq:clean_registries:QUEUE (string)
-- Words of a suspect  1 member of wip, or empty (only in intermediate)  2 id of the job  3 execution  4 worker, or empty
--                     5 for how many ms nobody may be subscribed, or empty if that does not count  6 `as-rq` if RQ's own
--                     rule decides, or empty  7 the `enqueued_at` with which the job is not on its queue, if that was searched; or empty
-- O(log jobs + length of the intermediate list, which has one element for each worker) for each suspect; for a job that was
-- never started NEAR ids at both ends of the queue are looked at, too
--
-- Who can come in between: the worker's heartbeat (it sets the score), its end of the job (it removes the member), a worker
-- that reconnects (it is subscribed again), and an application that enqueues the job again. This script reads all of it
-- again. RQ's own cleanup acts on what it has read before: see HIDDEN_S.
local TYPES = { 'zset', 'hash', 'hash', 'zset', 'list', 'list', 'set', 'zset', 'hash', 'stream', 'zset', 'string' }
local WRITES = { { 'ZREM', 1, 'x' }, { 'ZADD', 1, '0', 'x' }, { 'HSET', 2, 'x', 'x' }, { 'EXPIRE', 2, '1' }, { 'DEL', 3 }, { 'ZREM', 4, 'x' },
  { 'RPUSH', 5, 'x' }, { 'LPUSH', 5, 'x' }, { 'LREM', 6, '1', 'x' }, { 'SADD', 7, 'x' }, { 'ZADD', 8, '0', 'x' }, { 'XADD', 10, '*', 'x', 'x' },
  { 'ZADD', 11, '0', 'x' } }
local DELAYED = { types = { 'zset' }, writes = { { 'ZADD', 1, '0', 'x' } } }
local FAILED_FOR_S = 31536000
local CLOCKS_DIFFER_MS = 250
-- RQ's own cleanup is no transaction: it reads the members whose score has passed, then their jobs one by one, and acts on
-- all of them at the end, whatever happened meanwhile. So a member whose score has passed is hidden from it first: its
-- score is set to now + HIDDEN_S. RQ's scores are whole seconds, and the half second says that lapsed wrote it. Once it was hidden
-- for SETTLED_S and no worker has just taken the lock of the cleanup (for LOCK_S; a killed worker leaves it behind), a cleanup
-- that had read it has ended. AHEAD_S: how far the clock of a worker may be ahead.
local HIDDEN_S = 60.5
local SETTLED_S = 10
local LOCK_S = 899
local AHEAD_S = 2
-- A worker that beats every 30 s while it works gives its job 90 s at most, in whole seconds.
local BEATS_MS = 92000
-- The text of the failure, as RQ writes it: zlib, then base64.
local FAILURE = 'eNotjEsOwjAMBa/yDlBxgB6ABUvEBVzsNO4nRrGh6u0JEbuR5s17ZMFhdZUKS4isjsUmsAoPoMLY6OXCyOTY7dMoWvGbhHW8km7CN5vuMqtHPcdmDDuV83/s/Q2HRobGAKs9fFpJOr8rhVoB+epITWlcvlwdNSk='

-- 0.02 ms for each end.
local NEAR = 1000

-- A worker that was started later under the same name answers for itself only.
local function is_another(s)
  -- The job's own time of start is that of the run before, until the work horse has begun.
  local created = tonumber(redis.call('HGET', s.keys[3], 'created_at') or '')
  local started = created and iso(math.ceil(created * 1000) + 1) or redis.call('HGET', s.keys[2], 'started_at')
  local worker = once(s.keys[9], function()
    return redis.call('HMGET', s.keys[9], 'birth', 'current_job')
  end)
  return started and started ~= '' and worker[1] and worker[1] > started and worker[2] ~= s.words[2]
end

-- When lapsed hid a member, in seconds; nil if its worker wrote the score.
local function hidden_at(score)
  score = tonumber(score)
  return score % 1 == 0.5 and score - HIDDEN_S or nil
end

-- Whether RQ's own cleanup may be about to act on a member. One that it can see is to be hidden.
local function may_be_cleaned(s, at, score)
  local now = at.now / 1000
  if tonumber(score) <= now + AHEAD_S then
    s.later = true
    return true
  end
  local hidden = hidden_at(score)
  return hidden and (now < hidden + SETTLED_S or redis.call('TTL', s.keys[12]) > LOCK_S - 60)
end

-- nil if nobody has been subscribed for the limit and the worker did nothing meanwhile, and s.deadline; `A` if it may
-- live; `?` if its connection does not tell.
local function judge_connection(s, at, score)
  local name, limit = s.words[4], tonumber(s.words[5])
  local answer = once('subscribers of ' .. name, function()
    return redis.pcall('PUBSUB', 'NUMSUB', 'rq:pubsub:' .. name)
  end)
  if type(answer) ~= 'table' or answer['err'] then
    return '?'
  end
  -- The worker of the same name that was started later is subscribed, too. A second subscription is the work horse of the
  -- one before.
  local is_later = is_another(s)
  if tonumber(answer[2]) > (is_later and 1 or 0) then
    return 'A'
  end
  local worker = redis.call('HMGET', s.keys[9], 'last_heartbeat', 'birth')
  local did = (is_later and worker[2] or worker[1]) or ''
  -- One that may never have been subscribed must be known to beat while it works: SimpleWorker does not. A record that has
  -- expired was not renewed for 60 s, or for the whole time that a job of SimpleWorker may last.
  if limit > at.limit and not is_later and did ~= ''
    and (not score or hidden_at(score) or iso(tonumber(score) * 1000 - BEATS_MS) > did) then
    return '?'
  end
  local since, done = silent_since(name, at)
  if since and done ~= did then
    return 'A'
  end
  s.deadline = tonumber(since or (at.act and at.now or at.now - limit)) + limit
  return at.now < s.deadline and 'A' or nil
end

-- nil if its worker is dead, and s.deadline; else `A`.
local function judge_worker(s, at, score)
  if s.words[4] ~= '' and s.words[5] ~= '' then
    local code = judge_connection(s, at, score)
    if code ~= '?' then
      return code
    end
  end
  if not score then
    return 'A'
  end
  -- Whole seconds of the worker's clock: the end of that second counts.
  s.deadline = (hidden_at(score) or tonumber(score) + 1) * 1000
  return at.now < s.deadline and 'A' or nil
end

-- As `StartedJobRegistry.cleanup`: a job with retries left is retried, now or after its interval; any other has failed.
local function judge_retry(s)
  local job = redis.call('HMGET', s.keys[2], 'retries_left', 'retry_intervals', 'enqueue_at_front_on_retry')
  s.retries = tonumber(job[1] or '') or 0
  if s.retries < 1 then
    s.own_did, s.own_extra = 'd', 'f'
    return
  end
  local read, intervals = pcall(cjson.decode, job[2] or '[]')
  intervals = read and type(intervals) == 'table' and intervals or {}
  s.wait = tonumber(intervals[math.max(#intervals - s.retries, 0) + 1] or 0) or 0
  s.own_did, s.own_extra = 'p', job[3] == '1' or job[3] == 'True'
end

-- Whether the job was enqueued again and has another execution: then only this one is removed. Two that are both over never
-- remove each other, because a batch has each job once.
local function runs_elsewhere(s)
  for _, execution in ipairs(redis.call('ZRANGE', s.keys[4], 0, -1)) do
    if execution ~= s.words[3] and redis.call('ZSCORE', s.keys[1], s.words[2] .. ':' .. execution) then
      return true
    end
  end
  return false
end

-- Whether a job that nobody has started waits on its queue. nil: the queue is too long to be searched here, and `search.rs` has not
-- found out yet. What it has found out holds as long as the job was not enqueued again.
local function waits(s, enqueued_at)
  if redis.call('LPOS', s.keys[5], s.words[2], 'MAXLEN', NEAR)
    or redis.call('LPOS', s.keys[5], s.words[2], 'RANK', -1, 'MAXLEN', NEAR) then
    return true
  end
  if redis.call('LLEN', s.keys[5]) <= 2 * NEAR or (s.words[7] ~= '' and s.words[7] == enqueued_at) then
    return false
  end
  return nil
end

local function judge(s, at)
  local score = s.words[1] ~= '' and redis.call('ZSCORE', s.keys[1], s.words[1]) or nil
  if s.words[1] ~= '' and not score then
    return 'G'
  end
  if s.words[1] == '' then
    if not redis.call('LPOS', s.keys[6], s.words[2]) or redis.call('ZCARD', s.keys[4]) > 0 then
      return 'G'
    end
    local since = tonumber(redis.call('HGET', at.silence, 'intermediate:' .. s.words[2]) or at.now)
    s.deadline = since + 60000
    if at.now < s.deadline then
      return 'A'
    end
  else
    local code = judge_worker(s, at, score)
    if code then
      return code
    end
  end
  local job = redis.call('HMGET', s.keys[2], 'status', 'enqueued_at')
  local is_waiting = false
  if job[1] == 'queued' then
    is_waiting = waits(s, job[2])
    if is_waiting == nil then
      return 'A'
    end
  end
  if (job[1] == 'started' or job[1] == 'queued') and not is_waiting and not runs_elsewhere(s) then
    if score and at.act and may_be_cleaned(s, at, score) then
      return 'A'
    end
    s.read_payload = function()
      return redis.call('HGET', s.keys[2], 'data') or ''
    end
    if s.words[6] == 'as-rq' then
      judge_retry(s)
    end
    return nil
  end
  -- It has ended, is on its queue again, or runs elsewhere: only what still points to it is removed.
  s.is_over = true
  return 'G'
end

local function take_execution_out(s)
  if s.words[1] ~= '' then
    redis.call('ZREM', s.keys[1], s.words[1])
    redis.call('DEL', s.keys[3])
    redis.call('ZREM', s.keys[4], s.words[3])
  end
end

local function take_out(s)
  take_execution_out(s)
  if kind_of(s.keys[6]) ~= 'none' then
    redis.call('LREM', s.keys[6], 1, s.words[2])
  end
end

-- The key of the queue that the job belongs to from now on.
local function new_queue(s)
  if s.to then
    redis.call('HSET', s.keys[2], 'origin', s.to)
    s.next_id = s.to .. '/' .. s.words[2]
  end
  local queue = s.to and s.to_key or s.keys[5]
  gather('SADD', s.keys[7], queue)
  return queue
end

-- As `BaseRegistry.requeue` and `Queue._enqueue_async_job`; `retries_left` stays, because it counts failures of the job.
local function put_back(s, at, front)
  take_out(s)
  if s.own_did then
    redis.call('HSET', s.keys[2], 'retries_left', whole(s.retries - 1))
    if s.wait > 0 then
      redis.call('HSET', s.keys[2], 'status', 'scheduled')
      redis.call('ZADD', s.keys[11], whole(math.floor(at.now / 1000) + s.wait), s.words[2])
      return
    end
  end
  local now = once('now', function()
    return iso(at.now)
  end)
  redis.call('HSET', s.keys[2], 'status', 'queued', 'enqueued_at', now, 'started_at', '', 'ended_at', '')
  -- The start of the job made its hash stay.
  local ttl = tonumber(redis.call('HGET', s.keys[2], 'ttl') or '')
  if ttl and ttl > 0 then
    redis.call('EXPIRE', s.keys[2], whole(math.ceil(ttl)))
  end
  gather(front and 'LPUSH' or 'RPUSH', new_queue(s), s.words[2])
end

-- As `Queue.schedule_job`. A scheduler of RQ puts it on its queue in the second in which it is due.
local function delay(s)
  take_out(s)
  redis.call('HSET', s.keys[2], 'status', 'scheduled', 'started_at', '', 'ended_at', '')
  new_queue(s)
  redis.call('ZADD', s.delayed[1], whole(math.ceil(s.due / 1000)), s.words[2])
end

-- As `Job._handle_failure`.
local function bury(s, at)
  take_out(s)
  redis.call('HSET', s.keys[2], 'status', 'failed', 'ended_at', iso(at.now))
  redis.call('ZADD', s.keys[8], whole(math.floor(at.now / 1000) + FAILED_FOR_S), s.words[2])
  redis.call('XADD', s.keys[10], 'MAXLEN', '10', '*', 'type', '2', 'exc_string', FAILURE, 'worker_name', s.words[4],
    'execution_id', s.words[3])
end

local function discard(s)
  take_out(s)
  redis.call('DEL', s.keys[2])
end

local function after(s, at)
  if s.later then
    redis.call('ZADD', s.keys[1], 'XX', whole(math.floor(at.now / 1000) + math.floor(HIDDEN_S)) .. '.5', s.words[1])
  end
  if not s.is_over then
    return
  end
  -- Another worker may have taken the job and not started it: then its id is in the intermediate list.
  if s.words[1] ~= '' then
    take_execution_out(s)
  else
    take_out(s)
  end
end

-- A worker notes its birth. The clocks of two hosts differ, so that a quarter of a second of doubt is left.
local function came_after(s, at)
  local birth = redis.call('HGET', s.keys[9], 'birth')
  return birth and birth > iso(at.back + CLOCKS_DIFFER_MS)
end
