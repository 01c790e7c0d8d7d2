-- Looks at the heartbeats of owners in an adopted registry, and remembers who was seen, and who was seen alive.
-- Owners that are dead are noted with the time at which that was found, so that the brake of every process counts those
-- that hold nothing any more a moment later, whoever has taken it from them.
-- KEYS  1 meta  2 the record of observed owners  3 deaths  4... the heartbeat of each owner
-- ARGV  1 TTL of a heartbeat in ms  2 `reclaim`, or `dry`: writes nothing  3 fingerprint of the configuration
--       4 how many seconds the record is kept after the last pass  5... the owners
-- Answers  {now_ms, when the configuration was confirmed or '', then for each owner: ms left of its heartbeat (-1:
--           no end, -2: none), when it was first seen, until when its last known heartbeat was good (0: never seen)}
-- O(owners * log deaths)
--
-- Nothing can come in between: heartbeat and record are read and written in one step. An owner that nobody
-- has recorded is first seen now, so that it has a whole TTL from now on.
local now = clock()
local ttl, act = tonumber(ARGV[1]), ARGV[2] == 'reclaim'
local confirmed = redis.call('HGET', KEYS[1], 'adopted:' .. ARGV[3])
local owners = {}
for i = 5, #ARGV do
  owners[#owners + 1] = ARGV[i]
end
local known = every('HMGET', KEYS[2], owners)
local answer, records, dead, alive = { whole(now), confirmed or '' }, {}, {}, {}
for i, owner in ipairs(owners) do
  local left = redis.call('PTTL', KEYS[3 + i])
  local first, good = read_observed(known[i])
  first = first or now
  if left == -2 then
    good = math.min(good, now) -- the application has removed its heartbeat before it ran out
  else
    good = now + (left == -1 and ttl or left)
  end
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = left, whole(first), whole(good)
  records[#records + 1], records[#records + 2] = owner, pack_observed(first, good, now)
  if left ~= -2 then
    alive[#alive + 1] = owner
  elseif good > 0 or now >= first + ttl then
    dead[#dead + 1], dead[#dead + 2] = whole(now), owner
  end
end
if act and #records > 0 then
  each('HSET', KEYS[2], records)
  redis.call('EXPIRE', KEYS[2], ARGV[4])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', whole(now - ttl))
  if redis.call('ZCARD', KEYS[3]) > 0 then
    each('ZREM', KEYS[3], alive)
  end
  for at = 1, #dead, 2 do
    redis.call('ZADD', KEYS[3], 'NX', dead[at], dead[at + 1])
  end
end
return answer
