-- Starts an incarnation for an owner that writes its heartbeat key without lapsed: it lasts as long as that
-- key exists. Does nothing if the owner has an incarnation that has not ended.
-- KEYS  the base keys, then: 12 heartbeat (KEYS 1 again: none)
-- ARGV  1 owner  2 ttl_ms
-- Answers  incarnation
-- O(log incarnations)
local K = base(KEYS)
local now = clock()
local current = newest(redis.call('HGET', K.names, ARGV[1]))
local incarnation = current and read_incarnation(redis.call('HGET', K.lives, current))
if incarnation and incarnation.ending == '-' then
  return current
end
-- After the server was away, its heartbeat may have expired although the owner is alive.
local back = presence(K.meta, now, 0, 0, true) or now
local left = KEYS[12] ~= KEYS[1] and redis.call('PTTL', KEYS[12]) or -2
local deadline = good_until(now, left, tonumber(ARGV[2])) or now
if back > 0 then
  deadline = math.max(deadline, back + tonumber(ARGV[2]))
end
return (begin(K, ARGV[1], tonumber(ARGV[2]), now, true, deadline))
