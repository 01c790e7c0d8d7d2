-- RQ: a job that has failed is in `rq:failed:QUEUE`. Keys and words as in `put_back.lua`. `retry` as `FailedJobRegistry.requeue`.
local USES = { [2] = 'hash', [5] = 'list', [7] = 'set', [8] = 'zset' }
local WRITES = { { 'ZREM', 8, 'x' }, { 'HSET', 2, 'x', 'x' }, { 'EXPIRE', 2, '1' }, { 'PERSIST', 2 }, { 'SADD', 7, 'x' },
  { 'RPUSH', 5, 'x' }, { 'LPUSH', 5, 'x' } }

local function find(l)
  local job = redis.call('HMGET', l.keys[2], 'status', 'description')
  return job[1] == 'failed' and redis.call('ZSCORE', l.keys[8], l.words[2]) and (job[2] or '') or nil
end

local function retry(l, at, front)
  redis.call('ZREM', l.keys[8], l.words[2])
  redis.call('HSET', l.keys[2], 'status', 'queued', 'enqueued_at', iso(at.now), 'started_at', '', 'ended_at', '')
  local ttl = tonumber(redis.call('HGET', l.keys[2], 'ttl') or '')
  if ttl and ttl > 0 then
    redis.call('EXPIRE', l.keys[2], whole(math.ceil(ttl)))
  else
    redis.call('PERSIST', l.keys[2])
  end
  redis.call('SADD', l.keys[7], l.keys[5])
  redis.call(front and 'LPUSH' or 'RPUSH', l.keys[5], l.words[2])
end

local remove = nil
