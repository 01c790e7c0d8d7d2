-- Ends claims, each if it is the current one of its job and its incarnation has not ended.
-- KEYS  the ten of jobs, then: what each of some incarnations holds, then some queues
-- ARGV  1 `c` complete, `f` fail, `g` give back  2 the error, or `front` or `back`  3 format  4 outbox, or
--       empty  5 how many incarnations  6 how many queues, then the queues' names, then for each incarnation: incarnation
--       (empty: not known; then its KEYS is any)  how many claims  [id token] a claim
-- Answers  {'lives', incarnation or 0 a claim}: nothing was done; call once more with these, where 0 is the incarnation
--          of jobs that are not in flight
--          {'queues', queue...}: nothing was done; call once more with these, too
--          one letter a claim: d done, e its owner has ended, s superseded, g gone
-- O(claims * log held)
local K = job_keys(KEYS)
local how, word, format, outbox = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lives, queues = tonumber(ARGV[5]), tonumber(ARGV[6])
local keys, ids, tokens, at = {}, {}, {}, 7 + queues
for i = 1, queues do
  keys[ARGV[6 + i]] = KEYS[10 + lives + i]
end
local groups, unknown = {}, false
for g = 1, lives do
  local inc, size = ARGV[at], tonumber(ARGV[at + 1])
  unknown = unknown or inc == ''
  groups[g] = { inc = inc, held = KEYS[10 + g], from = #ids + 1, to = #ids + size, done = {} }
  for i = at + 2, at + 2 * size, 2 do
    local n = #ids + 1
    ids[n], tokens[n] = ARGV[i], ARGV[i + 1]
  end
  at = at + 2 + 2 * size
end
local records = every('HMGET', K.jobs, ids)
if unknown then
  local answer = { 'lives' }
  for i = 1, #ids do
    answer[1 + i] = records[i] and string.match(records[i], '^f:%d+:(%d+):') or '0'
  end
  return answer
end

local letters, done, tails, seen, puts, missing = {}, {}, {}, {}, {}, { 'queues' }
local with_tails = how ~= 'c' or format ~= 'own'
for _, group in ipairs(groups) do
  local packed = redis.call('HGET', K.lives, group.inc)
  local is_living = packed and string.find(packed, '^%d+:%d+:%-:') ~= nil
  local mine, of_life = ':' .. group.inc .. ':', group.done
  for i = group.from, group.to do
    local id, record = ids[i], records[i]
    if not record or seen[id] and how == 'c' then
      letters[i] = 'g'
    elseif seen[id] or string.find(record, 'f:' .. tokens[i] .. mine, 1, true) ~= 1 then
      letters[i] = 's'
    elseif not is_living then
      letters[i] = 'e'
    else
      local n = #done + 1
      letters[i], seen[id], done[n], of_life[#of_life + 1] = 'd', true, id, id
      if with_tails then
        tails[n] = tail_of(record)
      end
      if how == 'g' then
        local _, _, _, _, name = read_tail(tails[n])
        add_put(puts, outbox ~= '' and outbox or name, word == 'front', id, tails[n])
      end
    end
  end
end
for _, put in ipairs(puts) do
  if not keys[put.name] then
    missing[#missing + 1] = put.name
  end
end
if #missing > 1 then
  return missing
end
if #done == 0 then
  return table.concat(letters)
end

local no_way = may_write({ { 'HDEL', K.jobs, 'x' }, { 'HINCRBY', K.meta, 'x', '1' }, { 'HINCRBY', K.counts, 'x', '1' },
  { 'ZREM', groups[1].held, 'x' } })
if no_way then
  return no_way
end
must_be({ K.meta, K.counts }, {})
for _, group in ipairs(groups) do
  must_be({}, { group.held })
end
if with_tails then
  no_way = may_write({ { 'HSET', K.jobs, 'x', 'x' }, { 'ZADD', K.dead, '0', 'x' } })
  if no_way then
    return no_way
  end
  must_be({ K.crashes }, { K.dead, K.queues, K.crashes_at })
end
for _, put in ipairs(puts) do
  local takes, why = queue_takes(format, keys[put.name], K.set)
  if not takes then
    return redis.error_reply(why)
  end
end

local changed = {}
if how == 'c' then
  each('HDEL', K.jobs, done)
  redis.call('HINCRBY', K.meta, 'completed', #done)
elseif how == 'f' then
  local now = clock()
  for i, id in ipairs(done) do
    changed[2 * i - 1], changed[2 * i] = id, pack_dead('f', now, word, tails[i])
  end
  each('ZADD', K.dead, members(done))
else
  for _, put in ipairs(puts) do
    put_jobs(K, format, keys[put.name], put.name, put.ids, put.tails, put.front, changed)
  end
end
if #changed > 0 then
  each('HSET', K.jobs, changed)
end
if how == 'c' and with_tails then
  for _, tail in ipairs(tails) do
    local _, _, _, crashes, _, from = read_tail(tail)
    if crashes ~= '' then
      local key = crash_key(string.sub(tail, from))
      redis.call('HDEL', K.crashes, key)
      redis.call('ZREM', K.crashes_at, key)
    end
  end
end
for _, group in ipairs(groups) do
  if #group.done > 0 then
    redis.call('HINCRBY', K.counts, group.inc, 0 - each('ZREM', group.held, group.done))
  end
end
redis.call('HINCRBY', K.meta, 'flying', 0 - #done)
return table.concat(letters)
