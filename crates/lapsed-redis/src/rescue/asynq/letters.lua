-- asynq: an archived task is in `asynq:{Q}:archived`. Keys and words as in `put_back.lua`. `retry` as `runTaskCmd`, what `asynq task run` calls.
local USES = { [3] = 'hash', [4] = 'list', [5] = 'zset' }
local WRITES = { { 'ZREM', 5, 'x' }, { 'HSET', 3, 'x', 'x' }, { 'RPUSH', 4, 'x' }, { 'LPUSH', 4, 'x' } }

local function find(l)
  local task = redis.call('HMGET', l.keys[3], 'state', 'msg')
  return task[1] == 'archived' and redis.call('ZSCORE', l.keys[5], l.words[1]) and (task[2] or '') or nil
end

local function retry(l, _, front)
  redis.call('ZREM', l.keys[5], l.words[1])
  redis.call('HSET', l.keys[3], 'state', 'pending')
  redis.call(front and 'RPUSH' or 'LPUSH', l.keys[4], l.words[1])
end

local remove = nil
