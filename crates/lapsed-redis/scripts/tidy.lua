-- Bounded housekeeping: overdue owners that hold nothing are declared dead, incarnations that ended long ago
-- are forgotten, receipts past their retention are removed, old notes of batches too.
-- KEYS  the base keys, then: 12 restored
-- ARGV  1 rows  2 of the undeclared at most so many, or empty  3 keep receipts for ms  4 keep so many
--       5 term, or empty  6 seen_ms  7 gap_ms  8 keep notes of batches for ms
--       9 keep so many ended incarnations  10 and those that ended within ms
-- Answers  {owners ended, receipts pruned, 1 if the next call finds more, incarnations forgotten...}:
--          the caller removes what was noted as taken from those
-- O(rows * log incarnations)
local K = base(KEYS)
local now = clock()
local rows, most = tonumber(ARGV[1]), tonumber(ARGV[2] ~= '' and ARGV[2] or ARGV[1])
local keep_ms, keep = tonumber(ARGV[3]), tonumber(ARGV[4])
if refused(K.meta, K.batches, '', '', ARGV[5], now) == 'L' then
  return { 0, 0, 0 }
end
local back = presence(K.meta, now, tonumber(ARGV[6]), tonumber(ARGV[7]), true)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local no_way = may_write({ { 'HDEL', K.lives, 'x' }, { 'HSET', K.lives, 'x', 'x' }, { 'ZADD', K.past, '0', 'x' },
  { 'ZREM', K.due, 'x' }, { 'XDEL', K.receipts, '1-0' } })
if no_way then
  return no_way
end
redis.call('XLEN', K.receipts)
must_be({ K.lives, K.names, K.counts, K.batches, KEYS[12] }, { K.due, K.ended, K.deaths, K.past, K.batches_at })
local ended, seen = 0, 0
local overdue = redis.call('ZRANGEBYSCORE', K.due, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, rows)
for i = 1, #overdue, 2 do
  local inc, deadline = overdue[i], tonumber(overdue[i + 1])
  local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
  if not incarnation then
    redis.call('ZREM', K.due, inc)
  elseif due_at(deadline, incarnation.started, incarnation.ttl, back) <= now then
    seen = seen + 1
    if seen <= most and tonumber(redis.call('HGET', K.counts, inc) or 0) <= 0 then
      finish(K, inc, incarnation, 'd', now, deadline)
      ended = ended + 1
    end
  end
end

-- A call that changed nothing finds the same again.
local is_whole = ARGV[2] == '' or seen < most
local has_more = is_whole and ended > 0 and #overdue >= 2 * rows

local answer = { ended, 0, 0 }
local old = redis.call('ZRANGEBYSCORE', K.past, '-inf', whole(now - keep_ms), 'LIMIT', 0, rows)
-- Beyond the number that is kept, the oldest ones go earlier, but none that ended a moment ago.
local excess = math.min(rows, redis.call('ZCARD', K.past) - tonumber(ARGV[9]))
if excess > #old then
  old = redis.call('ZRANGEBYSCORE', K.past, '-inf', whole(now - tonumber(ARGV[10])), 'LIMIT', 0, excess)
end
for _, inc in ipairs(old) do
  local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
  if incarnation and tonumber(redis.call('HGET', K.counts, inc) or 0) <= 0 then
    local left = {}
    for other in string.gmatch(redis.call('HGET', K.names, incarnation.name) or '', '%d+') do
      if other ~= inc then
        left[#left + 1] = other
      end
    end
    if #left > 0 then
      redis.call('HSET', K.names, incarnation.name, table.concat(left, ','))
    else
      redis.call('HDEL', K.names, incarnation.name)
    end
    redis.call('HDEL', K.lives, inc)
    redis.call('HDEL', K.counts, inc)
    redis.call('ZREM', K.past, inc)
    redis.call('ZREM', K.deaths, inc)
    redis.call('ZREM', K.ended, inc)
    answer[#answer + 1] = inc
  end
end

has_more = has_more or #answer > 3 and #old >= rows

-- Receipts lie in groups; `floor` is the first number that still counts.
local total = tonumber(redis.call('HGET', K.meta, 'receipts') or 0)
local floor = tonumber(redis.call('HGET', K.meta, 'floor') or 0)
local pruned, done = 0, false
while pruned < rows and not done do
  local oldest = redis.call('XRANGE', K.receipts, '-', '+', 'COUNT', 1)[1]
  if not oldest then
    break
  end
  local last, fields = tonumber(string.match(oldest[1], '^%d+')), oldest[2]
  local numbers_of, at, size, step = {}, 0, 0, 1
  for i = 1, #fields, 2 do
    if fields[i] == 't' then
      at = tonumber(fields[i + 1])
    elseif fields[i] == 'n' then
      size = tonumber(fields[i + 1])
    elseif fields[i] == 'k' then -- items of before have no `n`
      size = size + 1
    elseif fields[i] == 'p' then
      step = tonumber(fields[i + 1])
    end
  end
  for i = 1, size do
    numbers_of[i] = last - (size - i) * step
  end
  local left = 0
  for i = 1, size do
    if numbers_of[i] >= floor then
      left = left + 1
    end
  end
  local drop = 0
  if at < now - keep_ms then
    drop = left
  else
    drop = math.min(left, math.max(0, total - keep))
  end
  if drop == left then
    redis.call('XDEL', K.receipts, oldest[1])
    for i = 1, size do
      numbers_of[i] = whole(numbers_of[i])
    end
    each('HDEL', KEYS[12], numbers_of)
  elseif drop > 0 then
    floor = numbers_of[size - left + drop] + 1
    redis.call('HSET', K.meta, 'floor', whole(floor))
    done = true
  else
    done = true
  end
  pruned, total = pruned + drop, total - drop
end
if pruned > 0 then
  redis.call('HSET', K.meta, 'receipts', whole(total))
end
answer[2] = pruned
has_more = has_more or pruned >= rows

local notes = redis.call('ZRANGEBYSCORE', K.batches_at, '-inf', whole(now - tonumber(ARGV[8])), 'LIMIT', 0, rows)
if #notes > 0 then
  each('HDEL', K.batches, notes)
  each('ZREM', K.batches_at, notes)
end
answer[3] = (has_more or #notes >= rows) and 1 or 0
return answer
