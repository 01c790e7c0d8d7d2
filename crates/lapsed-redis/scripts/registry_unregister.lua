-- Removes those keys that are still this incarnation's.
-- KEYS  1 lives  2 names  3 counts  4 the registry's hash  5 what that incarnation holds (if it is known)
-- ARGV  1 owner  2 incarnation, or empty for the newest  3 the incarnation of KEYS 5  4... the keys
-- Answers  {'stranger'} | {'again', incarnation} | {incarnation, `1` or `0` a key}
-- O(keys * log held)
local owner, inc = ARGV[1], ARGV[2]
if inc == '' then
  inc = newest(redis.call('HGET', KEYS[2], owner)) or ''
end
local incarnation = read_incarnation(redis.call('HGET', KEYS[1], inc))
if not incarnation or incarnation.name ~= owner then
  return { 'stranger' }
end
if ARGV[3] ~= inc then
  return { 'again', inc }
end
if incarnation.ending ~= '-' then
  return { 'ended', inc }
end
local no_way = may_write({ { 'HDEL', KEYS[4], 'x' }, { 'ZREM', KEYS[5], 'x' }, { 'HINCRBY', KEYS[3], 'x', '1' } })
if no_way then
  return no_way
end
must_be({ KEYS[3], KEYS[4] }, { KEYS[5] })
local answer, gone = { inc }, {}
for i = 4, #ARGV do
  local key = ARGV[i]
  local is_ours = redis.call('ZREM', KEYS[5], key) == 1
  if is_ours then
    gone[#gone + 1] = key
    if redis.call('HGET', KEYS[4], key) == owner then
      redis.call('HDEL', KEYS[4], key)
    else
      is_ours = false
    end
  end
  answer[#answer + 1] = is_ours and '1' or '0'
end
if #gone > 0 then
  redis.call('HINCRBY', KEYS[3], inc, 0 - #gone)
end
return answer
