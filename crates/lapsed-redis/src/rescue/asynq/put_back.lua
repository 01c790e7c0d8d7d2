-- asynq from 0.22 on: a task that is being worked on is in the list `active`, and its score in `lease` is when its worker's right
-- to it ends. A worker extends the lease every 5 s by 30 s and stops writing once it has passed. Each server writes the ids of its tasks
-- into `asynq:workers:{HOST:PID:UUID}` every 5 s, for 10 s.
-- KEYS of a suspect   1 asynq:{Q}:active (list)  2 asynq:{Q}:lease (sorted set)  3 asynq:{Q}:t:ID (hash)
--                     4 asynq:{Q}:pending (list, the tail is next)  5 asynq:{Q}:archived (sorted set)
--                     6 asynq:workers (sorted set)  7 asynq:{Q}:processed:DATE  8 asynq:{Q}:failed:DATE
--                     9 asynq:{Q}:processed  10 asynq:{Q}:failed (strings)
-- Words of a suspect  1 id of the task  2 key of a task without its id
-- O(place of the task in `active`, counted from the oldest, + servers) for each suspect
--
-- Who can come in between: the worker's heartbeat (it extends the lease), its end of the task and asynq's own recoverer (each
-- removes the id from `active` in one script before it does anything else), and a server that shows the task as its own although the lease is
-- missing or, by a clock that is slow, over. This script reads all four again.
local TYPES = { 'list', 'zset', 'hash', 'list', 'zset', 'zset', 'string', 'string', 'string', 'string' }
local WRITES = { { 'LREM', 1, '0', 'x' }, { 'ZREM', 2, 'x' }, { 'HSET', 3, 'x', 'x' }, { 'DEL', 3 }, { 'RPUSH', 4, 'x' },
  { 'LPUSH', 4, 'x' }, { 'ZADD', 5, '0', 'x' }, { 'ZREM', 5, 'x' }, { 'INCR', 7 }, { 'EXPIREAT', 7, '1' } }
local DELAYED = { types = { 'zset' }, writes = { { 'ZADD', 1, '0', 'x' } } }
local STATS_FOR_S = 7776000
local ARCHIVED_FOR_S = 7776000
local ARCHIVED_MAX = 10000
-- How many archived tasks one put-back removes; asynq itself removes the rest.
local TRIM_MAX = 100
-- A server whose clock is wrong by more than this counts as gone.
local CLOCKS_DIFFER_S = 3600
local LEASE_EXPIRED = 'asynq: task lease expired'

-- Whether a server that lives shows the task as its own.
local servers
local function is_claimed(s, at)
  servers = servers or redis.call('ZRANGEBYSCORE', s.keys[6], whole(math.floor(at.now / 1000) - CLOCKS_DIFFER_S), '+inf')
  for _, server in ipairs(servers) do
    local claimed = redis.pcall('HEXISTS', server, s.words[1])
    if claimed == 1 then
      return true
    end
  end
  return false
end

local function judge(s, at)
  local id = s.words[1]
  if not is_listed(s.keys[1], id, at) then
    return 'G'
  end
  local lease = redis.call('ZSCORE', s.keys[2], id)
  if lease then
    -- Whole seconds of the worker's clock: the end of that second counts.
    s.deadline = (tonumber(lease) + 1) * 1000 + at.limit
  else
    local since = silent_since(s.owner, at) or (at.act and at.now or at.now - at.limit)
    s.deadline = tonumber(since) + at.limit
  end
  if at.now < s.deadline or is_claimed(s, at) then
    return 'A'
  end
  local state = redis.call('HGET', s.keys[3], 'state')
  if not state then
    s.is_dangling = true
    return 'G'
  end
  if state ~= 'active' or redis.call('HEXISTS', s.keys[3], 'msg') == 0 then
    s.text = 'it is in `' .. s.keys[1] .. '`, but its state is ' .. state
    return 'U'
  end
  s.read_payload = function()
    return redis.call('HGET', s.keys[3], 'msg')
  end
  return nil
end

-- The oldest are at the end.
local function take_out(s)
  redis.call('LREM', s.keys[1], '-1', s.words[1])
  gather('ZREM', s.keys[2], s.words[1])
end

-- As `requeueCmd`.
local function put_back(s, _, front)
  take_out(s)
  gather(front and 'RPUSH' or 'LPUSH', s.keys[4], s.words[1])
  redis.call('HSET', s.keys[3], 'state', 'pending')
end

-- As `scheduleCmd`. Every server looks for tasks that are due, every 5 s, unless it is told otherwise.
local function delay(s)
  take_out(s)
  redis.call('ZADD', s.delayed[1], whole(math.ceil(s.due / 1000)), s.words[1])
  redis.call('HSET', s.keys[3], 'state', 'scheduled')
end

local function varint(number)
  local bytes = {}
  while number >= 128 do
    bytes[#bytes + 1] = string.char(number % 128 + 128)
    number = math.floor(number / 128)
  end
  return table.concat(bytes) .. string.char(number)
end

-- The message with `error_msg` (7) and `last_failed_at` (11), as asynq writes it into archived tasks. A field that comes again
-- replaces the one before, so that the bytes of the message stay as they are.
local function failed_message(s, now_s)
  return s.read_payload() .. '\58' .. varint(#LEASE_EXPIRED) .. LEASE_EXPIRED .. '\88' .. varint(now_s)
end

local function trim_archive(s, ids)
  for _, id in ipairs(ids) do
    redis.call('DEL', s.words[2] .. id)
    redis.call('ZREM', s.keys[5], id)
  end
end

-- A counter that is not a number must not end the script in its middle.
local function count(key, expires_s)
  local value = redis.call('GET', key)
  if not value or value:match('^%d+$') and #value < 19 then
    redis.call('INCR', key)
    if not value and expires_s then
      redis.call('EXPIREAT', key, whole(expires_s))
    end
  end
end

-- As `archiveCmd`.
local function bury(s, at)
  local now_s = math.floor(at.now / 1000)
  take_out(s)
  redis.call('ZADD', s.keys[5], whole(now_s), s.words[1])
  trim_archive(s, redis.call('ZRANGEBYSCORE', s.keys[5], '-inf', whole(now_s - ARCHIVED_FOR_S), 'LIMIT', '0', TRIM_MAX))
  local extra = redis.call('ZCARD', s.keys[5]) - ARCHIVED_MAX
  trim_archive(s, extra > 0 and redis.call('ZRANGE', s.keys[5], '0', math.min(extra, TRIM_MAX) - 1) or {})
  redis.call('HSET', s.keys[3], 'msg', failed_message(s, now_s), 'state', 'archived')
  count(s.keys[7], now_s + STATS_FOR_S)
  count(s.keys[8], now_s + STATS_FOR_S)
  count(s.keys[9])
  count(s.keys[10])
end

-- As `deleteTaskCmd`: the uniqueness lock goes with the task.
local function discard(s)
  take_out(s)
  local lock = redis.call('HGET', s.keys[3], 'unique_key')
  if lock and lock ~= '' and redis.pcall('GET', lock) == s.words[1] then
    redis.call('DEL', lock)
  end
  redis.call('DEL', s.keys[3])
end

-- An id in `active` whose task was deleted.
local function after(s)
  if s.is_dangling then
    take_out(s)
  end
end

-- Its lease says nothing about when the worker came.
local function came_after()
  return false
end
