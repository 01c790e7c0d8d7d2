-- asynq: a task is the hash `asynq:{Q}:t:ID`, and its `state` says which list or set of the queue has its id. See `rescue_drift.lua`.
-- Kinds  ghost_in_list, ghost_in_set  KEYS 1 a list or a sorted set of the queue  2 asynq:{Q}:t:ID (hash); words id
--        lease    KEYS 1 asynq:{Q}:lease (sorted set)  2 asynq:{Q}:active (list); words id
--        lost     KEYS 1 asynq:{Q}:t:ID (hash)  2 asynq:{Q}:pending (list, the tail is next)  3 asynq:{Q}:active (list)  4 to 7 its
--                 scheduled, retry, archived and completed (sorted sets); words id
-- O(length of the lists, SEARCH_MAX at most) for each finding. Every move of asynq is one script, so that a task is never between two places.
local SEARCH_MAX = 10000
local PLACES = { pending = 2, active = 3, scheduled = 4, retry = 5, archived = 6, completed = 7 }

local function is_long(key)
  return redis.call('LLEN', key) > SEARCH_MAX
end

local function check_ghost(f)
  if redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  if redis.call('TYPE', f.keys[1])['ok'] == 'list' then
    if is_long(f.keys[1]) then
      return 'N'
    end
    return not redis.call('LPOS', f.keys[1], f.words[1]) and 'G' or nil
  end
  return not redis.call('ZSCORE', f.keys[1], f.words[1]) and 'G' or nil
end

local function heal_ghost(f)
  if redis.call('TYPE', f.keys[1])['ok'] == 'list' then
    redis.call('LREM', f.keys[1], 0, f.words[1])
  else
    redis.call('ZREM', f.keys[1], f.words[1])
  end
end

-- A server takes a task and sets its lease in one script, and ends both in one.
local function check_lease(f)
  local score = redis.call('ZSCORE', f.keys[1], f.words[1])
  if not score then
    return 'G'
  end
  if is_long(f.keys[2]) then
    return 'N'
  end
  if redis.call('LPOS', f.keys[2], f.words[1]) then
    return 'G'
  end
  f.mark = score
  return nil
end

local function check_lost(f)
  local task = redis.call('HMGET', f.keys[1], 'state', 'msg')
  if not task[1] or not PLACES[task[1]] then
    return 'G'
  end
  for i = 4, 7 do
    if redis.call('ZSCORE', f.keys[i], f.words[1]) then
      return 'G'
    end
  end
  if is_long(f.keys[2]) or is_long(f.keys[3]) then
    return 'N'
  end
  if redis.call('LPOS', f.keys[2], f.words[1]) or redis.call('LPOS', f.keys[3], f.words[1]) then
    return 'G'
  end
  f.mark = task[1]
  if task[1] == 'archived' or task[1] == 'completed' then
    f.left = 'it is over, so that it is not run again; its key may be deleted'
  elseif not task[2] then
    f.left = 'it has no message'
  end
  return nil
end

-- As `requeueCmd`, to the end of the queue.
local function heal_lost(f)
  redis.call('LPUSH', f.keys[2], f.words[1])
  redis.call('HSET', f.keys[1], 'state', 'pending')
end

local KINDS = {
  ghost_in_list = {
    types = { 'list', 'hash' },
    writes = { { 'LREM', 1, '0', 'x' } },
    check = check_ghost,
    heal = heal_ghost,
  },
  ghost_in_set = {
    types = { 'zset', 'hash' },
    writes = { { 'ZREM', 1, 'x' } },
    check = check_ghost,
    heal = heal_ghost,
  },
  lease = {
    types = { 'zset', 'list' },
    writes = { { 'ZREM', 1, 'x' } },
    check = check_lease,
    heal = function(f) redis.call('ZREM', f.keys[1], f.words[1]) end,
  },
  lost = {
    types = { 'hash', 'list', 'list', 'zset', 'zset', 'zset', 'zset' },
    writes = { { 'LPUSH', 2, 'x' }, { 'HSET', 1, 'x', 'x' } },
    check = check_lost,
    heal = heal_lost,
  },
}
