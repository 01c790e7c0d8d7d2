-- Dramatiq (1.17 to 2.x): a message that a worker has fetched lies in the worker's set `__acks__.WORKER.QUEUE`. A worker
-- lives while its score in `__heartbeats__` is younger than `heartbeat_timeout`; every command of it sets that score.
-- KEYS of a suspect   1 __heartbeats__ (sorted set)  2 __acks__.WORKER.QUEUE (set)  3 QUEUE.msgs (hash)  4 QUEUE (list)
--                     5 dead letters QUEUE.XQ (sorted set)  6 their messages QUEUE.XQ.msgs (hash)
-- Words of a suspect  1 worker  2 id of the message
-- O(log workers) for each suspect
--
-- Who can come in between: the worker itself (its next command renews its score, and the message is its own), its
-- acknowledgement (the id leaves the set), and Dramatiq's own maintenance (it moves the whole set). Each is one
-- script of Dramatiq, and this one reads the score, the set and the message again.
local TYPES = { 'zset', 'set', 'hash', 'list', 'zset', 'hash' }
local WRITES = { { 'SREM', 2, 'x' }, { 'RPUSH', 4, 'x' }, { 'LPUSH', 4, 'x' }, { 'HDEL', 3, 'x' }, { 'ZADD', 5, '0', 'x' },
  { 'HSET', 6, 'x', 'x' } }

local function judge(s, at)
  local worker, id = s.words[1], s.words[2]
  local score = redis.call('ZSCORE', s.keys[1], worker)
  -- A worker without a score was removed from the list; its messages would never be found again.
  s.deadline = (tonumber(score) or (at.now - at.limit)) + at.limit
  if at.now < s.deadline then
    return 'A'
  end
  if redis.call('SISMEMBER', s.keys[2], id) == 0 then
    return 'G'
  end
  s.read_payload = function()
    return redis.call('HGET', s.keys[3], id)
  end
  return redis.call('HEXISTS', s.keys[3], id) == 0 and 'G' or nil
end

-- As `requeue` in Dramatiq's dispatch.lua, which appends.
local function put_back(s, _, front)
  redis.call('SREM', s.keys[2], s.words[2])
  redis.call(front and 'LPUSH' or 'RPUSH', s.keys[4], s.words[2])
end

-- As `nack`.
local function bury(s, at)
  local message = s.read_payload()
  redis.call('SREM', s.keys[2], s.words[2])
  redis.call('HDEL', s.keys[3], s.words[2])
  redis.call('ZADD', s.keys[5], whole(at.now), s.words[2])
  redis.call('HSET', s.keys[6], s.words[2], message)
end

local function discard(s)
  redis.call('SREM', s.keys[2], s.words[2])
  redis.call('HDEL', s.keys[3], s.words[2])
end

-- An id whose message is gone.
local function after(s)
  redis.call('SREM', s.keys[2], s.words[2])
end

-- Its sign of life says nothing about when the worker came.
local function came_after()
  return false
end
