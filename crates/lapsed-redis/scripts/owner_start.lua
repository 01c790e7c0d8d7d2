-- Starts a new incarnation of an owner.
-- KEYS  the base keys, then: 12 heartbeat (KEYS 1 again: none is written)
-- ARGV  1 owner  2 ttl_ms  3 `new`, or `unless_known`: only if this name has no incarnation
--       4 incarnation, or empty for the next one (other shards get that of the first one)
-- Answers  {incarnation, deadline_ms, now_ms, ttl_ms}, or {newest incarnation} if it was known.
-- O(log incarnations)
local K = base(KEYS)
local now = clock()
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local list = redis.call('HGET', K.names, owner)
if ARGV[3] == 'unless_known' and list then
  return { newest(list) }
end
if ARGV[4] ~= '' and redis.call('HEXISTS', K.lives, ARGV[4]) == 1 then
  return { newest(list) }
end
-- An incarnation that was taken over from keys which the application wrote itself was kept alive by the
-- heartbeat key. From here on that key is this incarnation's: the older one has its last TTL before it.
for inc in string.gmatch(list or '', '%d+') do
  local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
  if incarnation and incarnation.external and incarnation.ending == '-' then
    incarnation.external = false
    redis.call('HSET', K.lives, inc, pack_incarnation(incarnation))
    redis.call('ZADD', K.due, 'GT', whole(now + incarnation.ttl), inc)
  end
end
local inc = begin(K, owner, ttl, now, false, now + ttl, ARGV[4] ~= '' and ARGV[4] or nil)
if KEYS[12] ~= KEYS[1] then
  redis.call('SET', KEYS[12], inc, 'PX', whole(ttl))
end
return { inc, whole(now + ttl), whole(now), whole(ttl) }
