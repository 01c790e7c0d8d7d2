-- Hands a snapshot in, or drops the one that is there; either way no turn is under way any more.
-- KEYS  1 meta  2 snapshot
-- ARGV  1 turn, or empty to drop  2 the snapshot  3 how long it lasts, ms
-- Answers  1, or 0 if it was dropped since that turn began
-- O(1)
if ARGV[1] == '' then
  redis.call('DEL', KEYS[2])
  redis.call('HDEL', KEYS[1], 'turn')
  return 1
end
local turn = string.match(redis.call('HGET', KEYS[1], 'turn') or '', '^(%d+):')
if turn ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('HDEL', KEYS[1], 'turn')
return 1
