-- Resque: a worker is a member of `workers`; its job is in `worker:ID`. See `rescue_drift.lua`.
-- Kinds  worker  KEYS 1 workers (set)  2 worker:ID (string)  3 worker:ID:started (string)  4 worker:ping:NAME (string)  5 workers:heartbeat (hash);
--                words ID
--        record  KEYS 1 workers (set)  2 worker:ID (string); words ID
-- O(1) for each finding
--
-- A worker of Ruby enters itself, then the time of its start, then its heartbeat; one of Node its start, then its ping. So one that has none of
-- them, and no job, in two looks, is nobody.
local function check_worker(f)
  local id = f.words[1]
  if redis.call('SISMEMBER', f.keys[1], id) == 0 or redis.call('EXISTS', f.keys[2], f.keys[3], f.keys[4]) > 0
    or redis.call('HEXISTS', f.keys[5], id) == 1 then
    return 'G'
  end
  return nil
end

-- A worker that was frozen, pruned and then thawed works on without being listed, and beats only every 60 s. So nothing tells
-- its job from one that is lost.
local function check_record(f)
  local record = redis.call('GET', f.keys[2])
  if not record or redis.call('SISMEMBER', f.keys[1], f.words[1]) == 1 then
    return 'G'
  end
  f.mark = redis.sha1hex(record)
  f.left = 'no key tells whether that worker lives; if it does not, enqueue the job again and delete the key'
  return nil
end

local KINDS = {
  worker = {
    types = { 'set', 'string', 'string', 'string', 'hash' },
    writes = { { 'SREM', 1, 'x' } },
    check = check_worker,
    heal = function(f) redis.call('SREM', f.keys[1], f.words[1]) end,
  },
  record = {
    types = { 'set', 'string' },
    writes = {},
    check = check_record,
    heal = function() end,
  },
}
