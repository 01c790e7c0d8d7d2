-- One page of the entries, without those of owners that the caller knows to be alive: of these only
-- how many there are. What stays on the server need not be sent and read.
-- KEYS  1 the registry's hash
-- ARGV  1 cursor  2 how many entries to ask for  3... owners known to be alive
-- Answers  {cursor, held_us, {how many entries of each of these owners}, {entry, owner, ...}}
-- O(entries asked for + owners)
local _, began = clock()
local place, counts = {}, {}
for i = 3, #ARGV do
  place[ARGV[i]], counts[i - 2] = i - 2, 0
end
local scanned = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local page, others, size = scanned[2], {}, 0
for i = 2, #page, 2 do
  local at = place[page[i]]
  if at then
    counts[at] = counts[at] + 1
  else
    others[size + 1], others[size + 2] = page[i - 1], page[i]
    size = size + 2
  end
end
local _, done = clock()
return { scanned[1], done - began, counts, others }
