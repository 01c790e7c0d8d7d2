-- Takes, renews or ends a turn: a short exclusive right, held under a name.
-- KEYS  1 the hash of notes
-- ARGV  1 the turn  2 holder  3 ttl_ms; 0 ends the turn
-- Answers  1, or 0 while another holder has it
-- O(1)
local now, field = clock(), 'turn:' .. ARGV[1]
local until_ms, holder = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%d+) (.*)$')
if until_ms and now < tonumber(until_ms) and holder ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], field, whole(now + tonumber(ARGV[3])) .. ' ' .. ARGV[2])
return 1
