-- Registers keys for one incarnation: all of them or none.
-- KEYS  1 lives  2 names  3 counts  4 the registry's hash  5... what some incarnations hold
-- ARGV  1 owner  2 incarnation, or empty for the newest  3 `always`, or `free`: what another owner that has
--       not ended holds stays with it  4 how many of KEYS 5... then their incarnations, then the keys to register
-- Answers  {'unknown'} | {'stranger'} | {'ended', incarnation}
--          {'again', incarnation...}: nothing was done; call once more with what these incarnations hold
--          {incarnation, [`n` | `k` | `m` owner incarnation | `t` owner incarnation] a key}
-- O(keys * log held)
--
-- An entry's value is its owner's name, as the application's other readers expect. The sets of what each
-- incarnation holds say which incarnation of that name holds it; an entry in none of them was written by the
-- application itself, and has the number 0.
local owner, inc, free = ARGV[1], ARGV[2], ARGV[3] == 'free'
if inc == '' then
  inc = newest(redis.call('HGET', KEYS[2], owner))
  if not inc then
    return { 'unknown' }
  end
end
local incarnation = read_incarnation(redis.call('HGET', KEYS[1], inc))
if not incarnation or incarnation.name ~= owner then
  return { 'stranger' }
end
if incarnation.ending ~= '-' then
  return { 'ended', inc }
end
local declared, lives_of, missing = {}, {}, {}
local given = tonumber(ARGV[4])
for i = 1, given do
  declared[ARGV[4 + i]] = KEYS[4 + i]
end
local wanted = {}
for i = 5 + given, #ARGV do
  wanted[#wanted + 1] = ARGV[i]
end
local holders = every('HMGET', KEYS[4], wanted)

local function lives(name)
  if not lives_of[name] then
    local list = {}
    for other in string.gmatch(redis.call('HGET', KEYS[2], name) or '', '%d+') do
      list[#list + 1] = other
      if not declared[other] then
        missing[other] = true
      end
    end
    lives_of[name] = list
  end
  return lives_of[name]
end
if not declared[inc] then
  missing[inc] = true
end
for i = 1, #wanted do
  if holders[i] then
    lives(holders[i])
  end
end
if next(missing) then
  local again = { 'again' }
  for other in pairs(missing) do
    again[#again + 1] = other
  end
  return again
end

-- What the application wrote itself counts as a live owner's, because its state is not known.
local ended = { ['0'] = false }
local function has_ended(holder)
  if ended[holder] == nil then
    local record = read_incarnation(redis.call('HGET', KEYS[1], holder))
    ended[holder] = not record or record.ending ~= '-'
  end
  return ended[holder]
end

local answer, added, taken = { inc }, {}, {}
local fresh = {}
for i, key in ipairs(wanted) do
  local name, holder = holders[i], nil
  if fresh[key] then
    name, holder = owner, inc
  elseif name then
    for _, other in ipairs(lives(name)) do
      if redis.call('ZSCORE', declared[other], key) then
        holder = other
      end
    end
    holder = holder or '0'
  end
  if not name then
    answer[#answer + 1] = 'n'
  elseif holder == inc then
    answer[#answer + 1] = 'k'
  elseif (name == owner and tonumber(holder) > tonumber(inc) or free and name ~= owner) and
    not has_ended(holder) then
    answer[#answer + 1] = 't'
  else
    answer[#answer + 1] = 'm'
    if holder ~= '0' then
      taken[holder] = taken[holder] or {}
      table.insert(taken[holder], key)
    end
  end
  local word = answer[#answer]
  if word == 'm' or word == 't' then
    answer[#answer + 1] = name
    answer[#answer + 1] = holder
  end
  if (word == 'n' or word == 'm') and not fresh[key] then
    fresh[key] = true
    added[#added + 1] = key
  end
end
local no_way = may_write({ { 'HSET', KEYS[4], 'x', 'x' }, { 'ZREM', declared[inc], 'x' },
  { 'ZADD', declared[inc], '0', 'x' }, { 'HINCRBY', KEYS[3], 'x', '1' } })
if no_way then
  return no_way
end
must_be({ KEYS[3] }, { declared[inc] })
for holder, keys in pairs(taken) do
  redis.call('HINCRBY', KEYS[3], holder, 0 - each('ZREM', declared[holder], keys))
end
if #added > 0 then
  local entries, members = {}, {}
  for i, key in ipairs(added) do
    entries[2 * i - 1], entries[2 * i] = key, owner
    members[2 * i - 1], members[2 * i] = '0', key
  end
  each('HSET', KEYS[4], entries)
  redis.call('HINCRBY', KEYS[3], inc, each('ZADD', declared[inc], members))
end
return answer
