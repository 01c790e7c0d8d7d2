-- Returns providers that the mirror has declared silent and the truth has not set offline yet, oldest first.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at
-- ARGV  1 how many to skip  2 how many to examine
-- Answers  how many were looked at, then [name, `epoch:beat:decided`] for each
-- O(log doomed + how many)
local ids = redis.call('ZRANGE', KEYS[6], ARGV[1], tonumber(ARGV[1]) + tonumber(ARGV[2]) - 1)
local dooms, answer = every('HMGET', KEYS[5], ids), { whole(#ids) }
for i = 1, #ids do
  if dooms[i] then
    answer[#answer + 1], answer[#answer + 2] = ids[i], dooms[i]
  end
end
return answer
