-- Takes states of the truth over, each unless a newer one is known.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing  8 snapshot
-- ARGV  1 attempt to seed, or empty  2 and 3 what stands before and after a name in a heartbeat's key  4 and 5
--       the same for capacities  6 the same before a name in an alive key, or empty  7 stale_ms, then for each, nobody
--       twice: name  version  epoch  online (1)  active (1)  sessions  beat_ms on this server's clock, or empty
-- Answers  how many were newer; nil if the attempt is void
-- O(names)
local known = redis.call('HMGET', KEYS[1], 'kept', 'losses', 'missed', 'seeding:' .. ARGV[1])
local whole_before = intact(KEYS, known[1])
if ARGV[1] ~= '' and not (whole_before and known[4] and known[4] == life_of(known[2])) then
  return false
end
local now, ids = clock(), {}
for at = 8, #ARGV, 7 do
  ids[#ids + 1] = ARGV[at]
end
if #ids == 0 then
  return 0
end
local no_way = may_change(KEYS, ARGV[2] .. ids[1] .. ARGV[3], ARGV[4] .. ids[1] .. ARGV[5])
if no_way then
  return no_way
end
must_be_own(KEYS)
local versions, dooms = every('HMGET', KEYS[4], ids), every('HMGET', KEYS[5], ids)
local online, off = every('SMISMEMBER', KEYS[2], ids), every('SMISMEMBER', KEYS[3], ids)
local beats = beats_of(ARGV[2], ids, ARGV[3], now)
local told, up, down, deactivated, active, sets, gone, cancelled, found, alive = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local newer, moved = 0, false
for i, id in ipairs(ids) do
  local at = 1 + 7 * i
  local version, epoch, is_online, is_active = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1', ARGV[at + 4] == '1'
  local beat = ARGV[at + 6] ~= '' and math.min(tonumber(ARGV[at + 6]), now) or nil
  local last = version_of(versions[i])
  if not last or is_below(last, version) then
    newer = newer + 1
    told[#told + 1], told[#told + 2] = id, version .. ':' .. epoch
    if dooms[i] and (string.match(dooms[i], '^%d+') ~= epoch or not is_online) then
      cancelled[#cancelled + 1] = id
      dooms[i] = nil
    end
    is_online = is_online and not dooms[i]
    moved = moved or is_online ~= (online[i] == 1) or is_active ~= (off[i] == 0)
    local side = is_online and up or down
    side[#side + 1] = id
    side = is_active and active or deactivated
    side[#side + 1] = id
    local heartbeat, capacity = ARGV[2] .. id .. ARGV[3], ARGV[4] .. id .. ARGV[5]
    if ARGV[at + 5] == '0' then
      gone[#gone + 1] = capacity
    else
      sets[#sets + 1], sets[#sets + 2] = capacity, ARGV[at + 5]
    end
    if not is_online then
      gone[#gone + 1], found[#found + 1] = heartbeat, id
      if ARGV[6] ~= '' then
        gone[#gone + 1] = ARGV[6] .. id
      end
    elseif beat and not (beats[i] and beats[i] ~= 'u' and beats[i] >= beat) then
      sets[#sets + 1], sets[#sets + 2] = heartbeat, iso(beat)
      found[#found + 1] = id
      local left = beat + tonumber(ARGV[7]) - now
      if ARGV[6] ~= '' and left > 0 then
        alive[#alive + 1], alive[#alive + 2] = ARGV[6] .. id, whole(left)
      end
    end
  end
end
if newer == 0 then
  return 0
end
put(KEYS[4], told)
local changes = { { 'SADD', 2, up }, { 'SREM', 2, down }, { 'SADD', 3, deactivated }, { 'SREM', 3, active } }
for _, change in ipairs(changes) do
  if #change[3] > 0 then
    each(change[1], KEYS[change[2]], change[3])
  end
end
for from = 1, #sets, CHUNK do
  redis.call('MSET', unpack(sets, from, math.min(from + CHUNK - 1, #sets)))
end
for from = 1, #gone, CHUNK do
  redis.call('DEL', unpack(gone, from, math.min(from + CHUNK - 1, #gone)))
end
unmark(KEYS, cancelled, known[3] and found or {})
for i = 1, #alive, 2 do
  redis.call('SET', alive[i], '1', 'PX', alive[i + 1])
end
if moved then
  drop(KEYS)
end
keep(KEYS, known[1], whole_before)
return newer
