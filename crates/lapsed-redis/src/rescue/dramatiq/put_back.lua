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

local DELAYED = { types = { 'list', 'hash' }, writes = { { 'RPUSH', 1, 'x' }, { 'HSET', 2, 'x', 'x' } } }
local DELAY_QUEUE = '.DQ'

-- The message as Dramatiq writes it when it delays one: with the name of the delay queue, and with its time (`options.eta`). Every other
-- byte stays. nil if it is not JSON, or of another shape.
local function delayed_message(text, due)
  local is_read, message = pcall(cjson.decode, text)
  local options = is_read and type(message) == 'table' and message['options']
  if type(options) ~= 'table' or next(options) == nil or type(message['queue_name']) ~= 'string' then
    return nil
  end
  local places = places_of(text)
  local queue, at = places['queue_name'], places['options']
  local inner, brace = places_of(string.sub(text, at[1], at[2]))
  local edits = { { queue[2], queue[2] - 1, DELAY_QUEUE } }
  local eta = inner['eta']
  if eta then
    edits[2] = { at[1] + eta[1] - 1, at[1] + eta[2] - 1, whole(due) }
  else
    edits[2] = { at[1] + brace - 1, at[1] + brace - 2, ',"eta":' .. whole(due) }
  end
  table.sort(edits, function(one, other) return one[1] > other[1] end)
  for _, edit in ipairs(edits) do
    text = string.sub(text, 1, edit[1] - 1) .. edit[3] .. string.sub(text, edit[2] + 1)
  end
  return text, message['message_id']
end

local function judge(s, at)
  local worker, id = s.words[1], s.words[2]
  local score = once(s.keys[1] .. worker, function()
    return redis.call('ZSCORE', s.keys[1], worker)
  end)
  -- A worker without a score was removed from the list; its messages would never be found again.
  s.deadline = (tonumber(score) or (at.now - at.limit)) + at.limit
  if at.now < s.deadline then
    return 'A'
  end
  if redis.call('SISMEMBER', s.keys[2], id) == 0 then
    return 'G'
  end
  s.is_delayed_queue = string.sub(s.queue, -#DELAY_QUEUE) == DELAY_QUEUE
  -- What waits for its time already goes on waiting for it.
  s.no_delay = s.is_delayed_queue
  s.read_payload = function()
    return redis.call('HGET', s.keys[3], id)
  end
  if at.delays and not s.is_delayed_queue then
    -- A message that comes back from the delay queue has another id, and the same `message_id`.
    local message, same = delayed_message(s.read_payload() or '', 0)
    s.no_delay = not message
    s.crash_id = message and type(same) == 'string' and 'message:' .. same or nil
  end
  return redis.call('HEXISTS', s.keys[3], id) == 0 and 'G' or nil
end

-- As `requeue` in Dramatiq's dispatch.lua, which appends.
local function put_back(s, _, front)
  gather('SREM', s.keys[2], s.words[2])
  gather(front and 'LPUSH' or 'RPUSH', s.keys[4], s.words[2])
end

-- As `enqueue` with a delay.
local function delay(s)
  local id = s.words[2]
  local message = delayed_message(s.read_payload(), s.due)
  redis.call('SREM', s.keys[2], id)
  redis.call('HDEL', s.keys[3], id)
  redis.call('HSET', s.delayed[2], id, message)
  redis.call('RPUSH', s.delayed[1], id)
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
