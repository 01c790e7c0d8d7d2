-- Begins to seed. In a run of the server or of its data that nobody has begun to seed yet, what is known of
-- versions and of the silent is of another run of the server, and is forgotten: every state counts as new.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing  8 snapshot
-- ARGV  1 something that no other attempt has
-- Answers  the name of the attempt
-- O(attempts), and what is forgotten is removed in the background
local HOUR = 3600000
local now, us = clock()
must_be_own(KEYS)
local fields = redis.call('HGETALL', KEYS[1])
local known = {}
for i = 1, #fields, 2 do
  known[fields[i]] = fields[i + 1]
end
local whole_before = intact(KEYS, known.kept)
local back = presence(KEYS[1], now, 0, 0, true)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
if not whole_before then
  known.losses = whole(redis.call('HINCRBY', KEYS[1], 'losses', 1))
end
local incarnation = life_of(known.losses)
if known.base ~= incarnation then
  redis.call('HSET', KEYS[1], 'base', incarnation)
  redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6], KEYS[7])
  redis.call('HDEL', KEYS[1], 'missed')
  drop(KEYS)
end
-- Attempts of other runs of the server, and attempts that have not ended within an hour, are over.
for field, of in pairs(known) do
  local began = string.match(field, '^seeding:(%d+)%-')
  if began and (of ~= incarnation or us - tonumber(began) > HOUR * 1000) then
    redis.call('HDEL', KEYS[1], field)
  end
end
local attempt = whole(us) .. '-' .. ARGV[1]
redis.call('HSET', KEYS[1], 'seeding:' .. attempt, incarnation)
keep(KEYS, known.kept, true)
return attempt
