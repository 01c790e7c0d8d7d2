-- Makes all that is derived from the records of jobs agree with the records: what incarnations hold,
-- the dead letters, short queues, the counters.
-- KEYS  the base keys, then: 12 jobs  13 dead  14 queues, then: what some incarnations hold, then some queues
-- ARGV  1 `act` or `dry`  2 how many incarnations  3 how many queues, then their incarnations and names, then
--       `records` format longest id...: each job should be where its record says
--       `held` id...: what the one incarnation holds should be records that say so
--       `dead` id...: dead letters should be
--       `account` format lives_max
-- Answers  one letter a job: i as it should be, a added to what its incarnation holds, l the same and that incarnation was
--          unknown, d added to the dead letters, p put on its queue, q not examined (its queue is longer than
--          `longest`), r removed, m moved meanwhile, g gone
--          account: {in flight as counted, as it is, entered as counted, as it is}
-- O(jobs * log held); account O(incarnations)
local K = base(KEYS)
K.jobs, K.dead, K.queues = KEYS[12], KEYS[13], KEYS[14]
local act, lives, given = ARGV[1] == 'act', tonumber(ARGV[2]), tonumber(ARGV[3])
local now, helds, keys = clock(), {}, {}
for i = 1, lives do
  helds[ARGV[3 + i]] = KEYS[14 + i]
end
for i = 1, given do
  keys[ARGV[3 + lives + i]] = KEYS[14 + lives + i]
end
local first = 4 + lives + given
local what = ARGV[first]
if act then
  local no_way = may_write({ { 'ZADD', K.dead, '0', 'x' }, { 'ZREM', K.dead, 'x' }, { 'HSET', K.lives, 'x', 'x' },
    { 'HINCRBY', K.counts, 'x', '1' }, { 'RPUSH', K.jobs .. ':x', 'x' } })
  if no_way then
    return no_way
  end
  must_be({ K.meta, K.counts, K.lives, K.names, K.jobs }, { K.dead, K.ended, K.past, K.queues })
end

if what == 'account' then
  local format = ARGV[first + 1]
  local n = redis.call('HMGET', K.meta, 'flying', 'entered', 'completed', 'dropped', 'returned')
  for i = 1, 5 do
    n[i] = tonumber(n[i] or 0)
  end
  local flying = n[1]
  if redis.call('HLEN', K.counts) <= tonumber(ARGV[first + 2]) then
    flying = 0
    for _, held in ipairs(redis.call('HVALS', K.counts)) do
      flying = flying + tonumber(held)
    end
  end
  local entered = n[3] + n[4] + redis.call('HLEN', K.jobs) + (format == 'own' and 0 or n[5])
  if act and (flying ~= n[1] or entered ~= n[2]) then
    redis.call('HSET', K.meta, 'flying', whole(flying), 'entered', whole(entered))
  end
  return { whole(n[1]), whole(flying), whole(n[2]), whole(entered) }
end

local ids, letters = {}, {}
for i = first + (what == 'records' and 3 or 1), #ARGV do
  ids[#ids + 1] = ARGV[i]
end
local records = every('HMGET', K.jobs, ids)

-- An incarnation without a record cannot be judged, and its jobs would be held for ever: it is recorded as dead,
-- and the sweep puts its jobs back as those of any other.
local function stand_in(inc)
  local incarnation = { ttl = 1, started = now, ending = 'd', ended = now, deadline = now, held = 0, external = false,
    name = 'lapsed:forgotten' }
  redis.call('HSET', K.lives, inc, pack_incarnation(incarnation))
  local list = redis.call('HGET', K.names, incarnation.name)
  redis.call('HSET', K.names, incarnation.name, list and (inc .. ',' .. list) or inc)
  redis.call('ZADD', K.past, whole(now), inc)
end

local function file(inc, id)
  local incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
  local is_known = incarnation ~= nil
  if act then
    if not incarnation then
      stand_in(inc)
      incarnation = { ending = 'd', deadline = now }
    end
    redis.call('HINCRBY', K.counts, inc, redis.call('ZADD', helds[inc], '0', id))
    if incarnation.ending ~= '-' then
      redis.call('ZADD', K.ended, whole(incarnation.deadline), inc)
    end
  end
  return is_known and 'a' or 'l'
end

local function look_at(id, record)
  local head = string.byte(record)
  if head == 102 then
    local inc = string.match(record, '^f:%d+:(%d+):')
    if not helds[inc] then
      return 'm'
    end
    local is_filed = redis.call('ZSCORE', helds[inc], id) and redis.call('HEXISTS', K.lives, inc) == 1
    return is_filed and 'i' or file(inc, id)
  elseif head == 100 then
    if redis.call('ZSCORE', K.dead, id) then
      return 'i'
    end
    if act then
      redis.call('ZADD', K.dead, '0', id)
    end
    return 'd'
  end
  local _, _, _, _, name = read_tail(tail_of(record))
  if not keys[name] then
    return 'm'
  elseif ARGV[first + 1] ~= 'own' or redis.call('LLEN', keys[name]) > tonumber(ARGV[first + 2]) then
    return 'q'
  elseif redis.call('LPOS', keys[name], id) then
    return 'i'
  end
  if act then
    queue_put('own', keys[name], nil, name, { id }, true)
    redis.call('ZADD', K.queues, '0', name)
  end
  return 'p'
end

local list = what == 'dead' and K.dead or helds[ARGV[4]]
for i, id in ipairs(ids) do
  local record, sound = records[i], false
  if what == 'records' then
    letters[i] = record and look_at(id, record) or 'g'
  else
    if record and what == 'dead' then
      sound = string.byte(record) == 100
    elseif record then
      sound = string.match(record, '^f:%d+:(%d+):') == ARGV[4]
    end
    -- What was listed when the page was read may have gone on since.
    letters[i] = sound and 'i' or redis.call('ZSCORE', list, id) and 'r' or 'g'
    if act and letters[i] == 'r' then
      redis.call('ZREM', list, id)
    end
  end
end
if what == 'held' and act then
  -- However it came about: what is counted is what is there.
  local held = redis.call('ZCARD', helds[ARGV[4]])
  if held ~= tonumber(redis.call('HGET', K.counts, ARGV[4]) or 0) then
    redis.call('HSET', K.counts, ARGV[4], held)
    if held == 0 then
      redis.call('ZREM', K.ended, ARGV[4])
    end
  end
end
return table.concat(letters)
