-- Takes or renews the term.
-- KEYS  the base keys
-- ARGV  1 candidate  2 ttl_ms  3 a number that was won in another shard, or empty
-- Answers  {number, until_ms}, or {} while another process holds it
-- O(1)
local K = base(KEYS)
local now = clock()
local known = redis.call('HMGET', K.meta, 'term', 'holder', 'until')
local until_ms = now + tonumber(ARGV[2])
if ARGV[3] ~= '' then
  -- Fencing in the other shards: a larger number wins over a smaller one of any process.
  if tonumber(known[1] or 0) > tonumber(ARGV[3]) then
    return {}
  end
  redis.call('HSET', K.meta, 'term', ARGV[3], 'holder', ARGV[1], 'until', whole(until_ms))
  return { ARGV[3], whole(until_ms) }
end
presence(K.meta, now, 0, 0, true)
local number = known[1]
if now < tonumber(known[3] or 0) then
  if known[2] ~= ARGV[1] then
    return {}
  end
else
  number = whole(numbers(K.meta, 'term', 1) + 1)
end
redis.call('HSET', K.meta, 'term', number, 'holder', ARGV[1], 'until', whole(until_ms))
return { number, whole(until_ms) }
