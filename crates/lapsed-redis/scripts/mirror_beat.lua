-- Beats of providers, dated by the server's clock.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 missing
-- ARGV  1 and 2 what stands before and after a name in a heartbeat's key  3 the same before a name in an alive
--       key, or empty  4 stale_ms, then the names
-- Answers  one letter a name: N noted, D deactivated, O offline; nil if the mirror is not seeded
-- O(names)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'missed')
if not is_seeded(KEYS, known) then
  return false
end
if #ARGV == 4 then
  return ''
end
local off = redis.call('SMISMEMBER', KEYS[3], unpack(ARGV, 5))
local on = redis.call('SMISMEMBER', KEYS[2], unpack(ARGV, 5))
local before, after, text = ARGV[1], ARGV[2], iso((clock()))
local codes, sets, n = {}, {}, 0
for i = 1, #on do
  if off[i] == 1 then
    codes[i] = 'D'
  elseif on[i] == 1 then
    codes[i] = 'N'
    sets[n + 1], sets[n + 2] = before .. ARGV[4 + i] .. after, text
    n = n + 2
  else
    codes[i] = 'O'
  end
end
if n > 0 then
  redis.call('MSET', unpack(sets))
  if known[4] then
    redis.call('HDEL', KEYS[5], unpack(ARGV, 5))
  end
  if ARGV[3] ~= '' then
    for i = 1, #codes do
      if codes[i] == 'N' then
        redis.call('SET', ARGV[3] .. ARGV[4 + i], '1', 'PX', ARGV[4])
      end
    end
  end
end
return table.concat(codes)
