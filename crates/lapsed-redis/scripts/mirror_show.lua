-- Returns everything that the mirror stores about some providers, whether it is seeded or not.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing
-- ARGV  1 and 2 what stands before and after a name in a heartbeat's key  3 and 4 the same for capacities, then
--       the names
-- Answers  now_ms, seeded (1), then for each: `version:epoch` or empty; online (1); deactivated (1); sessions, or `u`;
--          beat_ms, or `m` and since when it is missed, or `u`; `epoch:beat:decided` or empty
-- O(names)
local now, ids = clock(), {}
for i = 5, #ARGV do
  ids[i - 4] = ARGV[i]
end
local versions, dooms = every('HMGET', KEYS[4], ids), every('HMGET', KEYS[5], ids)
local missed = every('HMGET', KEYS[7], ids)
local online, off = every('SMISMEMBER', KEYS[2], ids), every('SMISMEMBER', KEYS[3], ids)
local beats = beats_of(ARGV[1], ids, ARGV[2], now)
local keys = keys_of(ARGV[3], ids, ARGV[4])
local counts = texts_of(keys)
local odd = misfits(keys, counts)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses')
local answer = { whole(now), is_seeded(KEYS, known) and '1' or '0' }
for i = 1, #ids do
  local count = counts[i] or (odd[i] and 'u' or '0')
  answer[#answer + 1] = versions[i] or ''
  answer[#answer + 1] = whole(online[i])
  answer[#answer + 1] = whole(off[i])
  answer[#answer + 1] = #count < 16 and string.match(count, '^%d+$') or 'u'
  answer[#answer + 1] = beats[i] == 'u' and 'u' or beats[i] and whole(beats[i]) or 'm' .. (missed[i] or '')
  answer[#answer + 1] = dooms[i] or ''
end
return answer
