-- Returns one page of the providers that appear in one kind of key.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed
-- ARGV  1 kind: `versions`, `online`, `deactivated`, `doomed`, or `keys`  2 cursor  3 about how many
--       4 for `keys`: their pattern  5 and 6 what stands before and after the name in it
-- Answers  {cursor, name, ...}; of the later kinds only those without a version, who were not among the first
-- O(members of the page)
local kind, found = ARGV[1], nil
if kind == 'versions' then
  found = redis.call('HSCAN', KEYS[4], ARGV[2], 'COUNT', ARGV[3])
elseif kind == 'doomed' then
  found = redis.call('HSCAN', KEYS[5], ARGV[2], 'COUNT', ARGV[3])
elseif kind == 'keys' then
  found = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[4], 'COUNT', ARGV[3])
else
  found = redis.call('SSCAN', kind == 'online' and KEYS[2] or KEYS[3], ARGV[2], 'COUNT', ARGV[3])
end
local pairwise = kind == 'versions' or kind == 'doomed'
local ids = {}
for i = 1, #found[2], pairwise and 2 or 1 do
  local id = found[2][i]
  if kind == 'keys' then
    id = string.sub(id, #ARGV[5] + 1, #id - #ARGV[6])
  end
  if id ~= '' then
    ids[#ids + 1] = id
  end
end
local known = kind == 'versions' and {} or every('HMGET', KEYS[4], ids)
local answer = { found[1] }
for i = 1, #ids do
  if not known[i] then
    answer[#answer + 1] = ids[i]
  end
end
return answer
