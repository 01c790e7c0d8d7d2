-- Since when the mirror is there, and whether it was seeded.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at
-- ARGV  1 stale_ms
-- Answers  {now_ms, back_ms, run id, seeded (1), online, doomed, the last `mass` or empty, `masses`,
--           how many were decided to be silent within stale_ms}
-- O(1)
local now = clock()
local back, run = presence(KEYS[1], now, 0, 0, false)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
if now >= back + tonumber(ARGV[1]) then
  back = 0
end
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'mass', 'masses')
return { whole(now), whole(back), run, is_seeded(KEYS, known) and '1' or '0',
  whole(redis.call('SCARD', KEYS[2])), whole(redis.call('ZCARD', KEYS[6])),
  known[4] or '', known[5] or '0', whole(deaths_within(KEYS[1], now, tonumber(ARGV[1]), tonumber(ARGV[1]))) }
