-- Replaces the record of a brake if the stored one still has the expected version.
-- KEYS  the base keys
-- ARGV  1 expected version, 0 if nothing was ever stored  2 the new record, as JSON
--       3 until when the store-away grace is waived, 0 if it is not
-- Answers  1 if it was replaced, 0 if the stored record has another version
-- O(1)
local K = base(KEYS)
local stored = redis.call('HGET', K.meta, 'brake')
local version = 0
if stored then
  version = tonumber(cjson.decode(stored).version or 0)
end
if version ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', K.meta, 'brake', ARGV[2], 'waive', ARGV[3])
return 1
