-- Celery 5 over kombu's Redis transport: a delivered message is a field of `unacked` and a member of `unacked_index`, whose score is the
-- time of the delivery. kombu writes and removes both in one transaction. See `rescue_drift.lua` for what is defined here.
-- Kinds  index    KEYS 1 unacked_index (sorted set)  2 unacked (hash); words delivery tag
--        message  KEYS the same; words delivery tag
-- O(log messages) for each finding
local function check_index(f)
  local score = redis.call('ZSCORE', f.keys[1], f.words[1])
  if not score or redis.call('HEXISTS', f.keys[2], f.words[1]) == 1 then
    return 'G'
  end
  f.mark = score
  return nil
end

local function check_message(f)
  local message = redis.call('HGET', f.keys[2], f.words[1])
  if not message or redis.call('ZSCORE', f.keys[1], f.words[1]) then
    return 'G'
  end
  f.mark = redis.sha1hex(message)
  return nil
end

local KINDS = {
  index = {
    types = { 'zset', 'hash' },
    writes = { { 'ZREM', 1, 'x' } },
    check = check_index,
    heal = function(f) redis.call('ZREM', f.keys[1], f.words[1]) end,
  },
  -- Only what is in the index is delivered again. Its worker may live, so that the message itself stays where it is.
  message = {
    types = { 'zset', 'hash' },
    writes = { { 'ZADD', 1, '0', 'x' } },
    check = check_message,
    heal = function(f, at) redis.call('ZADD', f.keys[1], string.format('%.3f', at.now / 1000), f.words[1]) end,
  },
}
