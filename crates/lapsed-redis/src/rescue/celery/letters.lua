-- Celery has no dead letters: they are in a list of lapsed's own. Keys as in `put_back.lua`. `retry` puts the message on the list of its queue and
-- priority. The newest 1,000 are looked through.
local USES = { [3] = 'list', [4] = 'list' }
local WRITES = { { 'LREM', 4, '1', 'x' }, { 'RPUSH', 3, 'x' }, { 'LPUSH', 3, 'x' } }

local function find(l)
  local messages = once('letters ' .. l.keys[4], function()
    return redis.call('LRANGE', l.keys[4], 0, 999)
  end)
  for _, message in ipairs(messages) do
    if string.find(message, '"' .. l.id .. '"', 1, true) then
      local is_read, one = pcall(cjson.decode, message)
      if is_read and type(one) == 'table' and type(one.headers) == 'table' and one.headers.id == l.id then
        return message
      end
    end
  end
  return nil
end

local function retry(l, _, front)
  local message = find(l)
  redis.call('LREM', l.keys[4], 1, message)
  redis.call(front and 'RPUSH' or 'LPUSH', l.keys[3], message)
end

local function remove(l)
  redis.call('LREM', l.keys[4], 1, find(l))
end
