-- Beats of providers, dated by the server's clock. Those that waited (the server stood still, the line was bad) are
-- dated by when they were sent, and do not replace a later one: a provider that went silent meanwhile stays silent.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 missing  6 doomed
-- ARGV  1 and 2 what stands before and after a name in a heartbeat's key  3 the same before a name in an alive
--       key, or empty  4 stale_ms  5 what the server's clock said at most when this was sent; 0: not known,
--       then the names
-- Answers  one letter a name: N noted, D deactivated, O offline, S pending offline, so that only the truth can
--          decide; nil if the mirror is not seeded
-- O(names)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'missed', 'batched')
if not is_seeded(KEYS, known) then
  return false
end
if #ARGV == 5 then
  return ''
end
local off = redis.call('SMISMEMBER', KEYS[3], unpack(ARGV, 6))
local on = redis.call('SMISMEMBER', KEYS[2], unpack(ARGV, 6))
local before, after = ARGV[1], ARGV[2]
local now, sent = (clock()), tonumber(ARGV[5])
local late = sent > 0 and now > sent + 100
local text = iso(late and sent or now)
local codes, sets, n, absent, places = {}, {}, 0, {}, {}
for i = 1, #on do
  if off[i] == 1 then
    codes[i] = 'D'
  elseif on[i] == 1 then
    codes[i] = 'N'
    sets[n + 1], sets[n + 2] = before .. ARGV[5 + i] .. after, text
    n = n + 2
  else
    codes[i] = 'O'
    absent[#absent + 1], places[#places + 1] = ARGV[5 + i], i
  end
end
if #absent > 0 then
  for at, doom in ipairs(redis.call('HMGET', KEYS[6], unpack(absent))) do
    codes[places[at]] = doom and 'S' or 'O'
  end
end
if late and n > 0 then
  local names, newer = {}, {}
  for i = 1, n, 2 do
    names[#names + 1] = sets[i]
  end
  local there = texts_of(names)
  for i, name in ipairs(names) do
    if not there[i] or there[i] < text then
      newer[#newer + 1], newer[#newer + 2] = name, text
    end
  end
  if #newer > 0 then
    redis.call('MSET', unpack(newer))
  end
elseif n > 0 then
  redis.call('MSET', unpack(sets))
  if known[4] then
    redis.call('HDEL', KEYS[5], unpack(ARGV, 6))
  end
  if ARGV[3] ~= '' then
    for i = 1, #codes do
      if codes[i] == 'N' then
        redis.call('SET', ARGV[3] .. ARGV[5 + i], '1', 'PX', ARGV[4])
      end
    end
  end
end
if n * 5 >= redis.call('SCARD', KEYS[2]) then
  note_batched(KEYS[1], known[5], late and sent or now, n)
end
return table.concat(codes)
