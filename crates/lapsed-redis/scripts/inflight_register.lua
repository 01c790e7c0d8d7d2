-- Tracks jobs that another client has popped, for one incarnation.
-- KEYS  the ten of jobs, then: 11 what that incarnation holds
-- ARGV  1 owner  2 incarnation, or empty for the newest  3 the incarnation of KEYS 11  4 format
--       5... for each job: id  queue  way  crashes_max  payload
-- Answers  {'unknown'} | {'stranger'} | {'ended', incarnation} | {'again', incarnation}
--          {incarnation, [`t` or `k` and the token, or `x`] a job}: tracked, kept, somewhere else
-- O(jobs * log held)
local K = job_keys(KEYS)
local held, format = KEYS[11], ARGV[4]
local inc, no = claimed_life(K, ARGV[1], ARGV[2])
if not inc then
  return no
end
if ARGV[3] ~= inc then
  return { 'again', inc }
end
local now, ids, payloads = clock(), {}, {}
for at = 5, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
  payloads[#payloads + 1] = ARGV[at + 4]
end
local no_way = may_write({ { 'HSET', K.jobs, 'x', 'x' }, { 'HSET', K.meta, 'x', 'x' }, { 'ZADD', held, '0', 'x' },
  { 'HINCRBY', K.counts, 'x', '1' }, { 'ZADD', K.queues, '0', 'x' } })
if no_way then
  return no_way
end
must_be({ K.counts, K.meta }, { held, K.queues })
local known, crashes = every('HMGET', K.jobs, ids), {}
if format ~= 'own' then
  crashes = crashes_of(K, payloads)
end
local fresh, place, answer = {}, {}, { inc }
for i, id in ipairs(ids) do
  local token = known[i] and string.match(known[i], '^f:(%d+):' .. inc .. ':')
  if place[id] then
    answer[1 + i] = 'k'
  elseif known[i] then
    answer[1 + i] = token and 'k' .. token or 'x'
  else
    answer[1 + i] = 't'
    fresh[#fresh + 1] = i
    place[id] = #fresh
  end
end
if #fresh == 0 then
  return answer
end
local start, _, from = new_tokens(K.meta, #fresh)
local digits = ends()
local function token(n)
  local at = from + n - 1
  return start .. digits[math.floor(at / 100) + 1] .. digits[at % 100 + 1]
end
local mine, records, new, names, met = ':' .. inc .. ':' .. whole(now) .. ':', {}, {}, {}, {}
local entered = whole(now)
for n, i in ipairs(fresh) do
  local at = 5 + 5 * (i - 1)
  records[2 * n - 1] = ids[i]
  records[2 * n] = 'f:' .. token(n) .. mine
    .. pack_tail(entered, ARGV[at + 3], ARGV[at + 2], crashes[i] or '', ARGV[at + 1], payloads[i])
  new[n] = ids[i]
  if format ~= 'own' and not met[ARGV[at + 1]] then
    met[ARGV[at + 1]] = true
    names[#names + 1] = ARGV[at + 1]
  end
end
for i, id in ipairs(ids) do
  if answer[1 + i] == 't' or answer[1 + i] == 'k' then
    answer[1 + i] = answer[1 + i] .. token(place[id])
  end
end
each('HSET', K.jobs, records)
redis.call('HINCRBY', K.counts, inc, each('ZADD', held, members(new)))
redis.call('HINCRBY', K.meta, 'flying', #fresh)
redis.call('HINCRBY', K.meta, 'entered', #fresh)
if #names > 0 then
  each('ZADD', K.queues, members(names))
end
return answer
