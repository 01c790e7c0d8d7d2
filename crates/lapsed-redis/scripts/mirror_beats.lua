-- Some of those online, of them the beats that are old, missing or unreadable.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing
-- ARGV  1 cursor  2 about how many  3 older_ms  4 and 5 what stands before and after a name in a heartbeat's key
-- Answers  {now_ms, cursor, how many were looked at, [name, epoch, beat_ms or `m` and since when it is missed or `u`]
--          for each}; nil if the mirror is not seeded
-- O(members of the page)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'missed')
if not is_seeded(KEYS, known) then
  return false
end
local now = clock()
local cursor, ids = members(KEYS[2], ARGV[1], ARGV[2])
local beats, old, found = beats_of(ARGV[4], ids, ARGV[5], now), {}, {}
local latest = now - tonumber(ARGV[3])
local names = {}
for i = 1, #ids do
  local beat = beats[i]
  if not beat or beat == 'u' or beat <= latest then
    old[#old + 1], names[#names + 1] = i, ids[i]
  end
  if beat then
    found[#found + 1] = ids[i]
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
local answer = { whole(now), cursor, whole(#ids) }
for k, i in ipairs(old) do
  local _, epoch = version_of(versions[k])
  answer[#answer + 1] = ids[i]
  answer[#answer + 1] = epoch
  answer[#answer + 1] = beats[i] == 'u' and 'u' or beats[i] and whole(beats[i]) or 'm' .. (missed[k] or '')
end
return answer
