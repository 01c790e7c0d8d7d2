-- RQ 2: a job that waits is on `rq:queue:QUEUE`; one that a worker took is in `…:intermediate` (workers of one queue only), then in
-- `rq:wip:QUEUE`. See `rescue_drift.lua` for what is defined here.
-- Kinds  job     KEYS 1 rq:job:ID (hash)  2 rq:queue:QUEUE (list)  3 its intermediate list  4 rq:wip:QUEUE (sorted set)  5 rq:queues
--                (set)  6 to 10 rq:scheduled, deferred, failed, finished and canceled of the queue (sorted sets); words id, queue
--        wip     KEYS 1 rq:wip:QUEUE  2 rq:job:ID  3 rq:execution:ID:EXECUTION (hash)  4 rq:executions:ID (sorted set); words member,
--                execution
--        taken   KEYS 1 the intermediate list  2 rq:job:ID; words id
--        worker  KEYS 1 rq:workers or rq:workers:QUEUE (set)  2 rq:worker:WORKER (hash); words member, name
-- O(length of the queue, SEARCH_MAX at most) for a job, and once O(running jobs, WIP_MAX at most)
local SEARCH_MAX = 10000
-- A set of 10,000 takes 20 ms to read here.
local WIP_MAX = 500

-- How many are subscribed to a worker's channel; nil if this user may not ask.
local function subscribers(worker)
  local answer = redis.pcall('PUBSUB', 'NUMSUB', 'rq:pubsub:' .. worker)
  return type(answer) == 'table' and not answer['err'] and tonumber(answer[2]) or nil
end

-- The ids in `rq:wip:QUEUE`, read once for all findings.
local in_wip = {}
local function is_in_wip(key, id)
  if not in_wip[key] then
    in_wip[key] = {}
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      in_wip[key][string.match(member, '^(.*):[^:]*$') or member] = true
    end
  end
  return in_wip[key][id]
end

-- Whether the worker that started the job last is connected and still has it.
local function has_worker(id, worker)
  if worker == '' or redis.call('HGET', 'rq:worker:' .. worker, 'current_job') ~= id then
    return false
  end
  local connected = subscribers(worker)
  return connected == nil or connected > 0
end

local function check_job(f)
  local id = f.words[1]
  local job = redis.call('HMGET', f.keys[1], 'status', 'origin', 'enqueued_at', 'started_at', 'worker_name')
  if (job[1] ~= 'queued' and job[1] ~= 'started') or job[2] ~= f.words[2] then
    return 'G'
  end
  for i = 6, 10 do
    if redis.call('ZSCORE', f.keys[i], id) then
      return 'G'
    end
  end
  if redis.call('LLEN', f.keys[2]) > SEARCH_MAX or redis.call('ZCARD', f.keys[4]) > WIP_MAX then
    return 'N'
  end
  if is_in_wip(f.keys[4], id) or redis.call('LPOS', f.keys[3], id) or redis.call('LPOS', f.keys[2], id) then
    return 'G'
  end
  if has_worker(id, job[5] or '') then
    return 'A'
  end
  f.mark = table.concat({ job[1], job[3] or '', job[4] or '', job[5] or '' }, '\n')
  return nil
end

-- As `put_back` of a job whose worker is dead.
local function heal_job(f, at)
  redis.call('HSET', f.keys[1], 'status', 'queued', 'enqueued_at', iso(at.now), 'started_at', '', 'ended_at', '')
  redis.call('SADD', f.keys[5], f.keys[2])
  redis.call('RPUSH', f.keys[2], f.words[1])
end

-- A worker whose job was deleted while it runs removes its entry itself, and renews it until then.
local function check_wip(f, at)
  local score = redis.call('ZSCORE', f.keys[1], f.words[1])
  if not score or redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  if at.now < (tonumber(score) + 1) * 1000 then
    return 'A'
  end
  f.mark = score
  return nil
end

local function heal_wip(f)
  redis.call('ZREM', f.keys[1], f.words[1])
  redis.call('DEL', f.keys[3])
  redis.call('ZREM', f.keys[4], f.words[2])
end

local function check_taken(f)
  if not redis.call('LPOS', f.keys[1], f.words[1]) or redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  return nil
end

-- A worker that was frozen for so long that its record has expired is still connected.
local function check_worker(f)
  if redis.call('SISMEMBER', f.keys[1], f.words[1]) == 0 or redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  return (subscribers(f.words[2]) or 0) > 0 and 'A' or nil
end

local KINDS = {
  job = {
    types = { 'hash', 'list', 'list', 'zset', 'set', 'zset', 'zset', 'zset', 'zset', 'zset' },
    writes = { { 'HSET', 1, 'x', 'x' }, { 'SADD', 5, 'x' }, { 'RPUSH', 2, 'x' } },
    check = check_job,
    heal = heal_job,
  },
  wip = {
    types = { 'zset', 'hash', 'hash', 'zset' },
    writes = { { 'ZREM', 1, 'x' }, { 'DEL', 3 }, { 'ZREM', 4, 'x' } },
    check = check_wip,
    heal = heal_wip,
  },
  taken = {
    types = { 'list', 'hash' },
    writes = { { 'LREM', 1, '1', 'x' } },
    check = check_taken,
    heal = function(f) redis.call('LREM', f.keys[1], 1, f.words[1]) end,
  },
  worker = {
    types = { 'set', 'hash' },
    writes = { { 'SREM', 1, 'x' } },
    check = check_worker,
    heal = function(f) redis.call('SREM', f.keys[1], f.words[1]) end,
  },
}
