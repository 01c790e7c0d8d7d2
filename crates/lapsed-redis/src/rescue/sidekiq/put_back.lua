-- Sidekiq (6.1 to 8): a process pops a job off its queue and keeps it in memory. Redis knows of it only by the picture that each
-- heartbeat draws, of which lapsed keeps a copy (copy.lua). With a fetcher that moves jobs to a working list instead
-- (`reliable-fetch`, `lapsed_fetch`), Redis knows exactly.
-- KEYS of a suspect   1 ID (hash)  2 reliable-fetcher-heartbeat-ID (string)  3 marks of copies (hash, lapsed's)  4 copy of ID (hash, lapsed's)
--                     5 working:queue:NAME:ID (list)  6 queue:NAME (list)  7 queues (set)  8 dead (sorted set)  9 processes (set)
--                     10 copy of ID before that (hash, lapsed's)
-- Words of a suspect  1 `copy` or `list`  2 ID  3 thread  4 sha1 of the thread's field in the copy; or the job itself
--                     5 when the process was dead, in ms  6 how sure it is that the process held the job, a digit; empty: exact
-- O(bytes of the job + length of the working list, which has one element for each thread) for each suspect
--
-- Who can come in between: the process itself (a heartbeat writes ID again, so that EXISTS finds it), another lapsed (it removes the
-- thread's field), the cleaner of `reliable-fetch` (it pops the job off the working list). This script reads all of it again.
-- Whether the job is elsewhere was looked for before, in pages: the search is too long for a script.
local TYPES = { 'hash', 'string', 'hash', 'hash', 'list', 'list', 'set', 'zset', 'set', 'hash' }
local WRITES = { { 'HDEL', 3, 'x' }, { 'HDEL', 4, 'x' }, { 'LREM', 5, '1', 'x' }, { 'RPUSH', 6, 'x' }, { 'LPUSH', 6, 'x' },
  { 'SADD', 7, 'x' }, { 'ZADD', 8, '0', 'x' }, { 'SREM', 9, 'x' }, { 'UNLINK', 10 } }

local DELAYED = { types = { 'zset' }, writes = { { 'ZADD', 1, '0', 'x' } } }

-- Sidekiq's poller would lose what is not a JSON object: that is never delayed.
local function is_object(payload)
  local is_read, job = pcall(cjson.decode, payload)
  return is_read and type(job) == 'table' and next(job) ~= nil and string.find(payload, '^%s*{')
end

local function judge(s, at)
  s.place, s.sure = 's', s.words[6]
  s.deadline = math.min(tonumber(s.words[5]), at.now)
  if kind_of(s.keys[1]) ~= 'none' or kind_of(s.keys[2]) ~= 'none' then
    return 'A'
  end
  if s.words[1] == 'list' then
    s.payload = s.words[4]
    s.no_delay = at.delays and not is_object(s.payload)
    return not redis.call('LPOS', s.keys[5], s.payload) and 'G' or nil
  end
  local field = redis.call('HGET', s.keys[4], s.words[3])
  if not field or redis.sha1hex(field) ~= s.words[4] then
    return 'G'
  end
  -- Decoding a JSON string gives the bytes back that were on the queue. Nothing is encoded again.
  local is_read, entry = pcall(cjson.decode, field)
  if not is_read or type(entry) ~= 'table' or type(entry['payload']) ~= 'string' then
    s.text = 'its payload is not a text: Sidekiq 6.0 and older keep it decoded, and encoding it again would change it'
    return 'U'
  end
  s.payload = entry['payload']
  s.no_delay = at.delays and not is_object(s.payload)
  return nil
end

-- Takes the job away from its process. A process without jobs is removed from the list of processes, as
-- `ProcessSet#cleanup` does.
local function take_out(s)
  if s.words[1] == 'list' then
    redis.call('LREM', s.keys[5], '1', s.payload)
    return
  end
  redis.call('HDEL', s.keys[4], s.words[3])
  if redis.call('EXISTS', s.keys[4]) == 0 then
    redis.call('HDEL', s.keys[3], s.words[2])
    redis.call('SREM', s.keys[9], s.words[2])
    redis.call('UNLINK', s.keys[10])
  end
end

-- As `preprocess_interrupted_job` of `reliable-fetch`: one more interruption. Every other byte is as it was.
local function interrupted(payload)
  if not is_object(payload) then
    return payload
  end
  local places, brace = places_of(payload)
  local place = places.interrupted_count
  if not place then
    return string.sub(payload, 1, brace - 1) .. ',"interrupted_count":1' .. string.sub(payload, brace)
  end
  local count = tonumber(string.sub(payload, place[1], place[2])) or 0
  return string.sub(payload, 1, place[1] - 1) .. whole(count + 1) .. string.sub(payload, place[2] + 1)
end

-- The payload for the queue that the job belongs to from now on. Sidekiq goes by the `queue` inside it when the job is retried or
-- its time has come. Every other byte is as it was.
local function payload_for(s)
  local payload = s.words[1] == 'list' and interrupted(s.payload) or s.payload
  if not s.to or not is_object(payload) then
    return payload
  end
  local places, brace = places_of(payload)
  local place, name = places.queue, cjson.encode(s.to)
  if not place then
    return string.sub(payload, 1, brace - 1) .. ',"queue":' .. name .. string.sub(payload, brace)
  end
  return string.sub(payload, 1, place[1] - 1) .. name .. string.sub(payload, place[2] + 1)
end

-- As `UnitOfWork#requeue`, and `atomic_push` for the set of queues. Workers pop from the right: that is the front.
local function put_back(s, _, front)
  take_out(s)
  gather('SADD', s.keys[7], s.to or s.queue)
  gather(front and 'RPUSH' or 'LPUSH', s.to and s.to_key or s.keys[6], payload_for(s))
end

-- As `raw_push` of a job that is scheduled. A poller of Sidekiq pushes it when its time has come.
local function delay(s)
  take_out(s)
  gather('SADD', s.keys[7], s.to or s.queue)
  redis.call('ZADD', s.delayed[1], string.format('%.3f', s.due / 1000), payload_for(s))
end

-- As `send_to_morgue`, also for jobs with `dead: false`: such a job would be lost without a trace. Each has a score of its own,
-- because Sidekiq finds a dead job by its score. What is not a JSON object goes there as it is, as Sidekiq does it.
local buried = 0
local function bury(s, at, why)
  take_out(s)
  local _, crashes = string.gsub(s.log, ',', '')
  local score = string.format('%.6f', (at.now * 1000 + buried) / 1000000)
  local words = failure_words(why, s.id, crashes + 1)
  redis.call('ZADD', s.keys[8], score, is_object(s.payload) and as_failed(s.payload, words, score) or s.payload)
  s.letter = score
  buried = buried + 1
end

local function discard(s)
  take_out(s)
end

-- What another lapsed has put back is gone already.
local function after()
end

-- Its sign of life says nothing about when the process came.
local function came_after()
  return false
end
