-- Some of those online, of them those that can take work now.
-- KEYS  1 meta  2 online  3 deactivated  4 versions
-- ARGV  1 cursor  2 about how many  3 stale_ms, or empty where silence means nothing  4 sessions that are too many
--       5 and 6 what stands before and after a name in a heartbeat's key  7 and 8 the same for capacities
--       9 `count`, or `list`
-- Answers  {cursor, how many, [name, sessions] for each}; nil if the mirror is not seeded
-- O(members of the page)
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses')
if not is_seeded(KEYS, known) then
  return false
end
local cursor, ids = members(KEYS[2], ARGV[1], ARGV[2])
if redis.call('EXISTS', KEYS[3]) == 1 and #ids > 0 then
  local off, active = every('SMISMEMBER', KEYS[3], ids), {}
  for i = 1, #ids do
    if off[i] == 0 then
      active[#active + 1] = ids[i]
    end
  end
  ids = active
end
local most, list = tonumber(ARGV[4]), ARGV[9] == 'list'
local counts = texts_of(keys_of(ARGV[7], ids, ARGV[8]))
local beats, dates, now, latest = nil, {}, nil, nil
if ARGV[3] ~= '' then
  now = clock()
  beats, latest = texts_of(keys_of(ARGV[5], ids, ARGV[6])), now - tonumber(ARGV[3])
end
local answer, at, found = { cursor, '' }, 2, 0
local fresh = beats and fresher(latest, now)
for i = 1, #ids do
  if not beats or beats[i] and fresh(beats[i], dates) then
    -- One that cannot be read has no room, as far as anybody can tell; one below zero has all of it.
    local count = counts[i] and math.max(tonumber(counts[i]) or most, 0) or 0
    if count < most then
      found = found + 1
      if list then
        answer[at + 1], answer[at + 2] = ids[i], count == 0 and '0' or whole(count)
        at = at + 2
      end
    end
  end
end
answer[2] = whole(found)
return answer
