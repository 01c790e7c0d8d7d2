-- Resque 2 and 3 (Ruby) and node-resque: a job that is being worked on is in `worker:ID`, a JSON object with `queue` and `payload`.
-- A worker of Ruby dates its heartbeat in the hash `workers:heartbeat` every 60 s; one of Node in `worker:ping:NAME` every 5 s.
-- KEYS of a suspect   1 workers (set)  2 worker:ID (string)  3 worker:ID:started (string)  4 worker:ping:NAME (string)
--                     5 workers:heartbeat (hash)  6 queue:QUEUE (list, the head is next)  7 queues (set)  8 failed (list)
--                     9 stat:failed  10 stat:processed:NAME  11 stat:failed:NAME (strings)
--                     12 pruning_dead_workers_in_progress (string)
-- Words of a suspect  1 ID  2 NAME, as statistics have it  3 SHA-1 of `worker:ID`  4 the last heartbeat  5 `node` or `ruby`
--                     6 first and 7 last byte of the payload in it  8 where `args` is an empty object, or 0
--                     9 what `worker:ID:started` says, if a later worker has the ID now; else empty  10 the time, for `failed`
--                     11 when the job was begun, in ms of the worker's clock
-- O(bytes of the job) for each suspect
--
-- Who can come in between: the worker's heartbeat, its end of the job (it deletes `worker:ID`), its next job (it replaces
-- `worker:ID`), and another worker that cleans up (it takes the ID out of `workers`). This script reads all of it again. The clean-up
-- of both systems reads the job first and moves it to `failed` in a later step: if this script runs in between, the job is back
-- on its queue and also in `failed`. Ruby's holds a lock meanwhile, and is waited for.
local TYPES = { 'set', 'string', 'string', 'string', 'hash', 'list', 'set', 'list', 'string', 'string', 'string', 'string' }
local WRITES = { { 'SREM', 1, 'x' }, { 'DEL', 2 }, { 'DEL', 3 }, { 'DEL', 4 }, { 'HDEL', 5, 'x' }, { 'LPUSH', 6, 'x' },
  { 'RPUSH', 6, 'x' }, { 'SADD', 7, 'x' }, { 'RPUSH', 8, 'x' }, { 'INCR', 9 }, { 'DEL', 10 }, { 'DEL', 11 } }

-- A longer element is not remembered, so that `lapsed dead` does not find it again.
local LETTER_MAX = 4096

local function last_heartbeat(s)
  if s.words[5] == 'ruby' then
    return redis.call('HGET', s.keys[5], s.words[1])
  end
  return (redis.call('GET', s.keys[4]) or ''):match('"time":%s*(%d+)')
end

local function is_unchanged(s)
  if s.words[9] ~= '' then
    return redis.call('GET', s.keys[3]) == s.words[9]
  end
  return last_heartbeat(s) == s.words[4]
end

local function judge(s, at)
  local record = redis.call('GET', s.keys[2])
  if not record or redis.sha1hex(record) ~= s.words[3] or redis.call('SISMEMBER', s.keys[1], s.words[1]) == 0 then
    return 'G'
  end
  if not is_unchanged(s) or redis.call('EXISTS', s.keys[12]) == 1 then
    return 'A'
  end
  local since = redis.call('HGET', at.silence, s.owner) or (at.act and at.now or at.now - at.limit)
  s.deadline = tonumber(since) + at.limit
  if at.now < s.deadline then
    return 'A'
  end
  -- Jobs with the same class and arguments are counted together. One that is put back cannot die again before its next worker's
  -- heartbeat is overdue.
  s.crash_gap = s.words[5] == 'ruby' and 90000 or 15000
  s.began = tonumber(s.words[11]) + 1000
  local first, last, args = tonumber(s.words[6]), tonumber(s.words[7]), tonumber(s.words[8])
  s.payload = record:sub(first, last)
  if args > 0 then
    -- node-resque's own script has made an object of the empty list, because Lua cannot tell them apart.
    s.payload = record:sub(first, args - 1) .. '[]' .. record:sub(args + 2, last)
  end
  return nil
end

-- As `unregister_worker` and `untrack`. A later worker with the same ID keeps its records.
local function take_out(s)
  redis.call('DEL', s.keys[2])
  if s.words[9] == '' then
    redis.call('SREM', s.keys[1], s.words[1])
    redis.call('DEL', s.keys[3], s.keys[4], s.keys[10], s.keys[11])
    redis.call('HDEL', s.keys[5], s.words[1])
  end
end

local function put_back(s, _, front)
  take_out(s)
  redis.call('SADD', s.keys[7], s.queue)
  redis.call(front and 'LPUSH' or 'RPUSH', s.keys[6], s.payload)
end

-- As `Failure::Redis#save`.
local function bury(s)
  take_out(s)
  local count = redis.call('GET', s.keys[9])
  if not count or count:match('^%d+$') and #count < 19 then
    redis.call('INCR', s.keys[9])
  end
  local failed = '{"failed_at":' .. cjson.encode(s.words[10]) .. ',"payload":' .. s.payload
    .. ',"exception":"Resque::DirtyExit","error":"Job still being processed","backtrace":[],"worker":'
    .. cjson.encode(s.words[2]) .. ',"queue":' .. cjson.encode(s.queue) .. '}'
  s.letter = #failed <= LETTER_MAX and failed or ''
  redis.call('RPUSH', s.keys[8], failed)
end

local function discard(s)
  take_out(s)
end

-- What is gone points to nothing.
local function after()
end

-- A heartbeat says nothing about when the worker came.
local function came_after()
  return false
end
