-- Which jobs Sidekiq's set of dead jobs still has.
-- KEYS  1 the set
-- ARGV  for each job: score, sha1 of its member
-- Answers  a text with `1` for each that it has and `0` for each that it has not
-- O(jobs * log dead jobs + bytes of those with the same scores)
local found = {}
for n = 1, #ARGV, 2 do
  found[#found + 1] = member_of(KEYS[1], ARGV[n], ARGV[n + 1]) and '1' or '0'
end
return table.concat(found)
