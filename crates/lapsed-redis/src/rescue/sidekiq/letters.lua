-- Sidekiq: a job that will not be retried is in `dead`. Keys as in `put_back.lua`; l.place is its score, which no other has. `retry` as
-- `SortedEntry#retry`, without a change of the payload.
local USES = { [6] = 'list', [7] = 'set', [8] = 'zset' }
local WRITES = { { 'ZREM', 8, 'x' }, { 'SADD', 7, 'x' }, { 'RPUSH', 6, 'x' }, { 'LPUSH', 6, 'x' } }

local function find(l)
  local found = redis.call('ZRANGEBYSCORE', l.keys[8], l.place, l.place, 'LIMIT', 0, 10)
  for _, payload in ipairs(found) do
    if #found == 1 or string.find(payload, l.id, 1, true) then
      return payload
    end
  end
  return nil
end

local function retry(l, _, front)
  local payload = find(l)
  redis.call('ZREM', l.keys[8], payload)
  redis.call('SADD', l.keys[7], l.queue)
  redis.call(front and 'RPUSH' or 'LPUSH', l.keys[6], payload)
end

local remove = nil
