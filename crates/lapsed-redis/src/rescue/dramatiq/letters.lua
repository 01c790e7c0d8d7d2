-- Dramatiq: a dead letter is in `QUEUE.XQ`, its message in `QUEUE.XQ.msgs`. Keys and words as in `put_back.lua`. Dramatiq has no command for
-- `retry`; the message goes back as it is.
local USES = { [3] = 'hash', [4] = 'list', [5] = 'zset', [6] = 'hash' }
local WRITES = { { 'ZREM', 5, 'x' }, { 'HDEL', 6, 'x' }, { 'HSET', 3, 'x', 'x' }, { 'RPUSH', 4, 'x' }, { 'LPUSH', 4, 'x' } }

local function find(l)
  return redis.call('ZSCORE', l.keys[5], l.words[2]) and redis.call('HGET', l.keys[6], l.words[2]) or nil
end

local function retry(l, _, front)
  redis.call('HSET', l.keys[3], l.words[2], redis.call('HGET', l.keys[6], l.words[2]))
  redis.call('ZREM', l.keys[5], l.words[2])
  redis.call('HDEL', l.keys[6], l.words[2])
  redis.call(front and 'LPUSH' or 'RPUSH', l.keys[4], l.words[2])
end

local remove = nil
