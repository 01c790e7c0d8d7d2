-- Queues in the formats that jobs are put back to: what the scripts of `inflight` have after the
-- prelude. Payloads go as they are, byte for byte.
--
--   own      a list of the ids of jobs, whose records are elsewhere
--   list     a list of payloads
--   sidekiq  the same, and its name is in the set of queues
--   stream   a stream; each item has one field, `payload`
--
-- Lists are popped at their right end: that is the front. A stream has no front.

-- Whether a put would be carried out: asked before the first write, because a script is not undone.
-- `names_key` is the set of queues (sidekiq only). Answers true, or false and the error that it would be.
-- O(1)
local function queue_takes(format, key, names_key)
  local want = format == 'stream' and 'stream' or 'list'
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= want then
    return false, 'WRONGTYPE the key `' .. key .. '` is a ' .. kind .. ', not a ' .. want
  end
  local commands = { { 'LPUSH', key, 'x' }, { 'RPUSH', key, 'x' } }
  if format == 'stream' then
    commands = { { 'XADD', key, '*', 'payload', 'x' } }
  elseif format == 'sidekiq' and names_key then
    kind = redis.call('TYPE', names_key).ok
    if kind ~= 'none' and kind ~= 'set' then
      return false, 'WRONGTYPE the key `' .. names_key .. '` is a ' .. kind .. ', not a set'
    end
    commands[3] = { 'SADD', names_key, 'x' }
  end
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return false, 'NOPERM this user may not call ' .. command[1] .. ' on `' .. command[2] .. '`'
    end
  end
  return true
end

-- Puts `payloads` (of an own queue: ids) on the queue `name`, whose key is `key`: the first of them
-- is the first to be popped, before (`front`) or after everything that is there.
-- O(payloads)
local function queue_put(format, key, names_key, name, payloads, front)
  if #payloads == 0 then
    return
  end
  if format == 'stream' then
    for _, payload in ipairs(payloads) do
      redis.call('XADD', key, '*', 'payload', payload)
    end
    return
  end
  if format == 'sidekiq' then
    redis.call('SADD', names_key, name)
  end
  if not front then
    each('LPUSH', key, payloads)
    return
  end
  local last_first = {}
  for i = #payloads, 1, -1 do
    last_first[#last_first + 1] = payloads[i]
  end
  each('RPUSH', key, last_first)
end
