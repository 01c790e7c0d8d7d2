-- Removes jobs from the copy of a dead process: they are elsewhere, or are not to be put back.
-- KEYS  1 ID (hash)  2 marks of copies (hash)  3 the copy (hash)  4 the copy before (hash)
-- ARGV  1 ID, then for each job: thread, sha1 of its field
-- Answers  how many were removed; none if the process is back
-- O(jobs)
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local removed = 0
for n = 2, #ARGV, 2 do
  local field = redis.call('HGET', KEYS[3], ARGV[n])
  if field and redis.sha1hex(field) == ARGV[n + 1] then
    removed = removed + redis.call('HDEL', KEYS[3], ARGV[n])
  end
end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('UNLINK', KEYS[4])
end
return removed
