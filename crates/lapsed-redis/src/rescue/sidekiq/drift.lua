-- Sidekiq: a process is a member of `processes`, and its hash ID expires 60 s after its last heartbeat. See `rescue_drift.lua`.
-- Kinds  process  KEYS 1 processes (set)  2 ID (hash)  3 lapsed's own marks of copies (hash); words ID
-- O(1) for each finding
--
-- While lapsed has a copy of what the process ran, its name in `processes` is evidence that it did not end in order.
local function check_process(f)
  local id = f.words[1]
  if redis.call('SISMEMBER', f.keys[1], id) == 0 or redis.call('EXISTS', f.keys[2]) == 1 then
    return 'G'
  end
  return redis.call('HEXISTS', f.keys[3], id) == 1 and 'A' or nil
end

local KINDS = {
  process = {
    types = { 'set', 'hash', 'hash' },
    writes = { { 'SREM', 1, 'x' } },
    check = check_process,
    heal = function(f) redis.call('SREM', f.keys[1], f.words[1]) end,
  },
}
