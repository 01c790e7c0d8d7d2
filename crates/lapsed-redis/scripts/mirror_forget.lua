-- Removes every trace of providers, each only if its version is still the given one.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing  8 snapshot
-- ARGV  1 and 2 what stands before and after a name in a heartbeat's key  3 and 4 the same for capacities
--       5 the same before a name in an alive key, or empty, then for each: name  version, or empty if it has none
-- Answers  of how many there was a trace
-- O(names)
local known = redis.call('HMGET', KEYS[1], 'kept', 'missed')
local whole_before, ids = intact(KEYS, known[1]), {}
for at = 6, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end
if #ids == 0 then
  return 0
end
local no_way = may_change(KEYS, ARGV[1] .. ids[1] .. ARGV[2], ARGV[3] .. ids[1] .. ARGV[4])
if no_way then
  return no_way
end
must_be_own(KEYS)
local versions, dooms = every('HMGET', KEYS[4], ids), every('HMGET', KEYS[5], ids)
local online, off = every('SMISMEMBER', KEYS[2], ids), every('SMISMEMBER', KEYS[3], ids)
local going, keys, count, moved = {}, {}, 0, false
for i, id in ipairs(ids) do
  local version = version_of(versions[i])
  if (version or '') == ARGV[5 + 2 * i] then
    local own = { ARGV[1] .. id .. ARGV[2], ARGV[3] .. id .. ARGV[4] }
    if versions[i] or dooms[i] or online[i] == 1 or off[i] == 1 or existing(own) > 0 then
      count = count + 1
      moved = moved or online[i] == 1
      going[#going + 1] = id
      keys[#keys + 1], keys[#keys + 2] = own[1], own[2]
      if ARGV[5] ~= '' then
        keys[#keys + 1] = ARGV[5] .. id
      end
    end
  end
end
if count == 0 then
  return 0
end
each('SREM', KEYS[2], going)
each('SREM', KEYS[3], going)
for from = 1, #keys, CHUNK do
  redis.call('DEL', unpack(keys, from, math.min(from + CHUNK - 1, #keys)))
end
each('HDEL', KEYS[4], going)
unmark(KEYS, going, known[2] and going or {})
if moved then
  drop(KEYS)
end
keep(KEYS, known[1], whole_before)
return count
