-- Dramatiq (1.17 to 2.x): a message is a field of `QUEUE.msgs`; its id is on the list `QUEUE`, or in the set `__acks__.WORKER.QUEUE`
-- of a worker that is a member of `__heartbeats__`. Each step of Dramatiq is one script. See `rescue_drift.lua`.
-- Kinds  queued   KEYS 1 QUEUE (list)  2 QUEUE.msgs (hash); words id
--        held     KEYS 1 __acks__.WORKER.QUEUE (set)  2 QUEUE.msgs; words id
--        message  KEYS 1 QUEUE.msgs  2 QUEUE  3 __heartbeats__ (sorted set); words id, `NAMESPACE:__acks__.`, queue
-- O(length of the queue, SEARCH_MAX at most, + workers, WORKERS_MAX at most) for each finding
local SEARCH_MAX, WORKERS_MAX = 10000, 1000

local function check_queued(f)
  if redis.call('HEXISTS', f.keys[2], f.words[1]) == 1 then
    return 'G'
  end
  if redis.call('LLEN', f.keys[1]) > SEARCH_MAX then
    return 'N'
  end
  return not redis.call('LPOS', f.keys[1], f.words[1]) and 'G' or nil
end

local function check_held(f)
  if redis.call('SISMEMBER', f.keys[1], f.words[1]) == 0 or redis.call('HEXISTS', f.keys[2], f.words[1]) == 1 then
    return 'G'
  end
  return nil
end

-- The sets of all workers for one queue, looked for once for all findings.
local sets = {}
local function sets_of(heartbeats, start, queue)
  local name = start .. '\n' .. queue
  if not sets[name] then
    sets[name] = {}
    for _, worker in ipairs(redis.call('ZRANGE', heartbeats, 0, -1)) do
      local set = start .. worker .. '.' .. queue
      if redis.call('TYPE', set)['ok'] == 'set' then
        table.insert(sets[name], set)
      end
    end
  end
  return sets[name]
end

local function check_message(f)
  local id, message = f.words[1], redis.call('HGET', f.keys[1], f.words[1])
  if not message then
    return 'G'
  end
  if redis.call('LLEN', f.keys[2]) > SEARCH_MAX or redis.call('ZCARD', f.keys[3]) > WORKERS_MAX then
    return 'N'
  end
  for _, set in ipairs(sets_of(f.keys[3], f.words[2], f.words[3])) do
    if redis.call('SISMEMBER', set, id) == 1 then
      return 'G'
    end
  end
  if redis.call('LPOS', f.keys[2], id) then
    return 'G'
  end
  f.mark = redis.sha1hex(message)
  return nil
end

local KINDS = {
  queued = {
    types = { 'list', 'hash' },
    writes = { { 'LREM', 1, '0', 'x' } },
    check = check_queued,
    heal = function(f) redis.call('LREM', f.keys[1], 0, f.words[1]) end,
  },
  held = {
    types = { 'set', 'hash' },
    writes = { { 'SREM', 1, 'x' } },
    check = check_held,
    heal = function(f) redis.call('SREM', f.keys[1], f.words[1]) end,
  },
  message = {
    types = { 'hash', 'list', 'zset' },
    writes = { { 'RPUSH', 2, 'x' } },
    check = check_message,
    heal = function(f) redis.call('RPUSH', f.keys[2], f.words[1]) end,
  },
}
