-- Ends an incarnation: because its owner retires, or (in the other shards) because one shard has declared it dead.
-- KEYS  the base keys, then: 12 heartbeat (KEYS 1 again: none)
-- ARGV  1 owner  2 incarnation, or empty for the newest  3 `r` retired, `d` dead
-- Answers  {incarnation, how it had ended before (`-` if it had not)}; {'stranger'}
-- O(log incarnations)
local K = base(KEYS)
local inc = ARGV[2]
local list = redis.call('HGET', K.names, ARGV[1])
if inc == '' then
  inc = newest(list) or ''
end
local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
if not incarnation or incarnation.name ~= ARGV[1] then
  return { 'stranger' }
end
local before = incarnation.ending
if before == '-' then
  local now = clock()
  local deadline = ARGV[3] == 'd' and tonumber(redis.call('ZSCORE', K.due, inc) or now) or now
  finish(K, inc, incarnation, ARGV[3], now, math.min(deadline, now))
  if KEYS[12] ~= KEYS[1] and newest(list) == inc then
    redis.call('DEL', KEYS[12])
  end
end
return { inc, before }
