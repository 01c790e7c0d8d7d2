-- Some of those online, of them the beats that are old, missing or unreadable. Notices when many beats are of one
-- millisecond (C1): pings are not, but an application that fills the mirror again dates them all alike.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing
-- ARGV  1 cursor  2 about how many  3 older_ms  4 and 5 what stands before and after a name in a heartbeat's key
-- Answers  {now_ms, cursor, how many were looked at, `at_ms:beats:looked at` if many are of one millisecond, or
--          empty, [name, epoch, beat_ms or `m` and since when it is missed or `u`]
--          for each, and [name, 0, `f`] for each whose beat is of now or of the future}; nil if the mirror is not
--          seeded
-- O(members of the page)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'missed', 'back', 'batched', 'mass')
if not is_seeded(KEYS, known) then
  return false
end
local now = clock()
local cursor, ids = members(KEYS[2], ARGV[1], ARGV[2])
local beats, old, found = beats_of(ARGV[4], ids, ARGV[5], now), {}, {}
local latest = now - tonumber(ARGV[3])
local names, same, ahead = {}, {}, {}
for i = 1, #ids do
  local beat = beats[i]
  if not beat or beat == 'u' or beat <= latest then
    old[#old + 1], names[#names + 1] = i, ids[i]
  elseif beat == now then
    ahead[#ahead + 1] = ids[i]
  end
  if beat then
    found[#found + 1] = ids[i]
    same[beat] = (same[beat] or 0) + 1
  end
end
-- What lapsed wrote itself is no sign: in one call for many, or when it filled the mirror (`back`). A time that lies
-- ahead counts as now, so that is none either.
local text, most, mass, ours = '', 0, 0, ',' .. (known[6] or '') .. ','
for beat, alike in pairs(same) do
  if alike >= 5 and alike * 5 >= #ids and alike > most and beat ~= 'u' and beat < now
    and beat > tonumber(known[5] or 0) and not string.find(ours, ',' .. whole(beat) .. ',', 1, true) then
    most, mass = alike, beat
  end
end
if most > 0 then
  text = whole(mass) .. ':' .. whole(most) .. ':' .. whole(#ids)
  if mass > tonumber(string.match(known[7] or '', '^%d+') or 0) then
    redis.call('HSET', KEYS[1], 'mass', text)
    redis.call('HINCRBY', KEYS[1], 'masses', 1)
  end
end
local versions = every('HMGET', KEYS[4], names)
local missed = known[4] and every('HMGET', KEYS[7], names) or {}
if known[4] and #found > 0 then
  each('HDEL', KEYS[7], found)
  if redis.call('HLEN', KEYS[7]) <= 1 then
    redis.call('HDEL', KEYS[1], 'missed')
  end
end
local answer = { whole(now), cursor, whole(#ids), text }
for k, i in ipairs(old) do
  local _, epoch = version_of(versions[k])
  answer[#answer + 1] = ids[i]
  answer[#answer + 1] = epoch
  answer[#answer + 1] = beats[i] == 'u' and 'u' or beats[i] and whole(beats[i]) or 'm' .. (missed[k] or '')
end
for _, id in ipairs(ahead) do
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = id, '0', 'f'
end
return answer
