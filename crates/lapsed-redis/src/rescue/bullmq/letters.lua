-- BullMQ: a job that has failed is in `failed`; until a worker takes it, it waits with the field `defa`. Keys and words as in `put_back.lua`.
local USES = { [4] = 'hash', [11] = 'zset' }
local WRITES = {}

local function find(l)
  if redis.call('ZSCORE', l.keys[11], l.words[1]) or redis.call('HEXISTS', l.keys[4], 'defa') == 1 then
    return redis.call('HGET', l.keys[4], 'data') or nil
  end
  return nil
end

-- `retryJob` of BullMQ changes more than one key of the job, and other keys in each version.
local retry, remove = nil, nil
