-- Returns one page of the incarnations that are overdue or ended and hold something, by deadline.
-- KEYS  the base keys
-- ARGV  1 from deadline_ms  2 from incarnation (of that deadline)  3 limit
--       4 at most this many that are not declared dead yet; empty: all
-- Answers  {incarnation, deadline_ms, packed incarnation, held} ...
-- O(log incarnations + what is before the place with the same deadline + the page)
local K = base(KEYS)
local now = clock()
local back = presence(K.meta, now, 0, 0, false) or 0
local from, from_inc, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most = ARGV[4] ~= '' and tonumber(ARGV[4]) or nil
local found = {}
local function take(inc, deadline, packed)
  local held = tonumber(redis.call('HGET', K.counts, inc) or 0)
  local late = deadline > from or (deadline == from and tonumber(inc) >= from_inc)
  if late and held > 0 then
    found[#found + 1] = { inc, deadline, packed, held }
  end
end
-- The undeclared are counted from the very beginning: a place in the list is not a new allowance.
local start = most and '-inf' or whole(from)
local undeclared, skip, step = 0, 0, math.min(math.max(limit, 100), CHUNK)
local function wants_more()
  return #found < limit and (not most or undeclared < most)
end
while wants_more() do
  local page = redis.call('ZRANGEBYSCORE', K.due, start, whole(now), 'WITHSCORES', 'LIMIT', skip, step)
  for i = 1, #page, 2 do
    if not wants_more() then
      break
    end
    local packed = redis.call('HGET', K.lives, page[i])
    local incarnation, deadline = read_incarnation(packed), tonumber(page[i + 1])
    if incarnation and due_at(deadline, incarnation.started, incarnation.ttl, back) <= now then
      undeclared = undeclared + 1
      take(page[i], deadline, packed)
    end
  end
  if #page < 2 * step then
    break
  end
  skip = skip + step
end
local ended = redis.call('ZRANGEBYSCORE', K.ended, whole(from), '+inf', 'WITHSCORES', 'LIMIT', 0, limit + CHUNK)
local room = #found
for i = 1, #ended, 2 do
  if #found - room < limit then
    take(ended[i], tonumber(ended[i + 1]), redis.call('HGET', K.lives, ended[i]))
  end
end
table.sort(found, function(a, b)
  if a[2] ~= b[2] then
    return a[2] < b[2]
  end
  return tonumber(a[1]) < tonumber(b[1])
end)
local answer = {}
for i = 1, math.min(#found, limit) do
  local incarnation = found[i]
  answer[#answer + 1] = incarnation[1]
  answer[#answer + 1] = whole(incarnation[2])
  answer[#answer + 1] = incarnation[3]
  answer[#answer + 1] = incarnation[4]
end
return answer
