-- Those declared silent that the truth does not know of yet, the oldest first.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at
-- ARGV  1 how many at the most
-- Answers  [name, `epoch:beat:decided`] for each
-- O(log doomed + how many)
local ids = redis.call('ZRANGE', KEYS[6], 0, tonumber(ARGV[1]) - 1)
local dooms, answer = every('HMGET', KEYS[5], ids), {}
for i = 1, #ids do
  if dooms[i] then
    answer[#answer + 1], answer[#answer + 2] = ids[i], dooms[i]
  end
end
return answer
