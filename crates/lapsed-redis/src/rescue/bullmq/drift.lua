-- BullMQ 5 and 6: a job that is being worked on is in the list `active` and has a lock `ID:lock`; both come and go in one script of
-- BullMQ. `stalled` has ids that were active at BullMQ's last check. See `rescue_drift.lua` for what is defined here.
-- Kinds  active   KEYS 1 active (list)  2 ID (hash)  3 ID:lock (string)  4 stalled (set); words id
--        stalled  KEYS 1 stalled  2 active; words id
--        lock     KEYS 1 ID:lock  2 ID  3 active; words id
-- O(length of `active`, SEARCH_MAX at most) for each finding
local SEARCH_MAX = 10000

local function is_active(key, id)
  return redis.call('LPOS', key, id, 'RANK', '-1')
end

local function check_active(f)
  if redis.call('LLEN', f.keys[1]) > SEARCH_MAX then
    return 'N'
  end
  if not is_active(f.keys[1], f.words[1]) or redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  return redis.call('EXISTS', f.keys[3]) == 1 and 'A' or nil
end

local function heal_active(f)
  redis.call('LREM', f.keys[1], '-1', f.words[1])
  redis.call('SREM', f.keys[4], f.words[1])
end

local function check_stalled(f)
  if redis.call('LLEN', f.keys[2]) > SEARCH_MAX then
    return 'N'
  end
  if redis.call('SISMEMBER', f.keys[1], f.words[1]) == 0 or is_active(f.keys[2], f.words[1]) then
    return 'G'
  end
  return nil
end

-- A lock that a worker set expires by itself. It is not removed before, because it is what BullMQ refuses late completions by.
local function check_lock(f)
  local token = redis.call('GET', f.keys[1])
  if not token then
    return 'G'
  end
  if redis.call('LLEN', f.keys[3]) > SEARCH_MAX then
    return 'N'
  end
  if redis.call('EXISTS', f.keys[2]) == 1 and is_active(f.keys[3], f.words[1]) then
    return 'G'
  end
  if redis.call('PTTL', f.keys[1]) >= 0 then
    f.left = 'it expires by itself'
  end
  f.mark = token
  return nil
end

local KINDS = {
  active = {
    types = { 'list', 'hash', 'string', 'set' },
    writes = { { 'LREM', 1, '-1', 'x' }, { 'SREM', 4, 'x' } },
    check = check_active,
    heal = heal_active,
  },
  stalled = {
    types = { 'set', 'list' },
    writes = { { 'SREM', 1, 'x' } },
    check = check_stalled,
    heal = function(f) redis.call('SREM', f.keys[1], f.words[1]) end,
  },
  lock = {
    types = { 'string', 'hash', 'list' },
    writes = { { 'DEL', 1 } },
    check = check_lock,
    heal = function(f) redis.call('DEL', f.keys[1]) end,
  },
}
