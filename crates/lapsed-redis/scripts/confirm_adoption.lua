-- Records that the operator has confirmed an adopted configuration.
-- KEYS  1 meta
-- ARGV  1 fingerprint of the configuration
-- Answers  when it was confirmed, in ms of the server's clock: the first time, if that was before
-- O(1)
local now = clock()
local field = 'adopted:' .. ARGV[1]
local before = redis.call('HGET', KEYS[1], field)
if not before then
  redis.call('HSET', KEYS[1], field, whole(now))
end
return before or whole(now)
