-- Ends claims, each if it is the current one of its job and its life has not ended.
-- KEYS  the ten of jobs, then: what some lives hold, then some queues
-- ARGV  1 `c` complete, `f` fail, `g` give back  2 the error, or `front` or `back`  3 format  4 outbox, or
--       empty  5 how many lives  6 how many queues  then their incarnations, then their names, then for
--       each claim: id  token  incarnation, or empty
-- Answers  {'again', how many lives, incarnation..., queue...}: nothing was done; call once more with these
--          one letter a claim: d done, e its owner has ended, s superseded, g gone
-- O(claims * log held)
local K = job_keys(KEYS)
local how, word, format, outbox = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lives, queues = tonumber(ARGV[5]), tonumber(ARGV[6])
local helds, keys, first = {}, {}, 7 + lives + queues
for i = 1, lives do
  helds[ARGV[6 + i]] = KEYS[10 + i]
end
for i = 1, queues do
  keys[ARGV[6 + lives + i]] = KEYS[10 + lives + i]
end
local ids = {}
for at = first, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records, living = every('HMGET', K.jobs, ids), {}
local function is_living(inc)
  if living[inc] == nil then
    local life = read_life(redis.call('HGET', K.lives, inc))
    living[inc] = life ~= nil and life.ending == '-'
  end
  return living[inc]
end

local letters, done, tails, by_life, missing = {}, {}, {}, {}, {}
local seen, puts, more = {}, {}, {}
for i, id in ipairs(ids) do
  local at = first + 3 * (i - 1)
  local record, inc = records[i], ARGV[at + 2]
  if record and inc == '' then
    inc = string.match(record, '^f:%d+:(%d+):')
  end
  if not record or seen[id] and how == 'c' then
    letters[i] = 'g'
  elseif seen[id] or not inc or string.find(record, 'f:' .. ARGV[at + 1] .. ':' .. inc .. ':', 1, true) ~= 1 then
    letters[i] = 's'
  elseif not is_living(inc) then
    letters[i] = 'e'
  else
    letters[i], seen[id] = 'd', true
    done[#done + 1] = id
    by_life[inc] = by_life[inc] or {}
    table.insert(by_life[inc], id)
    if not helds[inc] and not missing[inc] then
      missing[inc] = true
      table.insert(more, 1, inc)
    end
    if how ~= 'c' or format ~= 'own' then
      tails[#done] = tail_of(record)
    end
    if how == 'g' then
      local _, _, _, _, name = read_tail(tails[#done])
      name = outbox ~= '' and outbox or name
      add_put(puts, name, word == 'front', id, tails[#done])
    end
  end
end
local unknown = #more
for _, put in ipairs(puts) do
  if not keys[put.name] and not missing['q' .. put.name] then
    missing['q' .. put.name] = true
    more[#more + 1] = put.name
  end
end
if #more > 0 then
  table.insert(more, 1, unknown)
  table.insert(more, 1, 'again')
  return more
end
if #done == 0 then
  return table.concat(letters)
end

local no_way = may_write({ { 'HDEL', K.jobs, 'x' }, { 'HSET', K.jobs, 'x', 'x' }, { 'HINCRBY', K.meta, 'x', '1' },
  { 'HINCRBY', K.counts, 'x', '1' }, { 'ZADD', K.dead, '0', 'x' } })
if no_way then
  return no_way
end
for _, put in ipairs(puts) do
  local takes, why = queue_takes(format, keys[put.name], K.set)
  if not takes then
    return redis.error_reply(why)
  end
end
must_be({ K.meta, K.counts, K.crashes }, { K.dead, K.queues })
for inc in pairs(by_life) do
  must_be({}, { helds[inc] })
end
local now, changed = clock(), {}
if how == 'c' then
  each('HDEL', K.jobs, done)
  redis.call('HINCRBY', K.meta, 'completed', #done)
elseif how == 'f' then
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
if how == 'c' and format ~= 'own' then
  for _, tail in ipairs(tails) do
    local _, _, _, crashes, _, from = read_tail(tail)
    if crashes ~= '' then
      local key = crash_key(string.sub(tail, from))
      redis.call('HDEL', K.crashes, key)
      redis.call('ZREM', K.crashes_at, key)
    end
  end
end
for inc, gone in pairs(by_life) do
  redis.call('HINCRBY', K.counts, inc, 0 - each('ZREM', helds[inc], gone))
end
redis.call('HINCRBY', K.meta, 'flying', 0 - #done)
return table.concat(letters)
