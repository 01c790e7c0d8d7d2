-- Reconciles what the incarnations of one owner hold with the registry: entries that the application wrote
-- itself are filed, under the newest incarnation of their owner, or under one that its heartbeat key keeps
-- alive; what is filed and is not (or no longer) that owner's is taken out.
-- KEYS  the base keys, then: 12 the registry's hash  13... what the incarnations of that owner hold
-- ARGV  1 owner  2 `act` or `dry`  3 how many of KEYS 13...  then their incarnations, then the keys to
--       look at
-- Answers  {'again', incarnation...} | {'start'}: that owner has no incarnation yet (see owner_adopt)
--          {incarnation, one letter a key}: i listed already, a added, r removed, m another owner's by
--          now, g gone
-- O(keys * log held)
local K = base(KEYS)
local owner, act, given = ARGV[1], ARGV[2] == 'act', tonumber(ARGV[3])
local declared, known, keys = {}, {}, {}
for i = 1, given do
  declared[ARGV[3 + i]] = KEYS[12 + i]
end
for i = 4 + given, #ARGV do
  keys[#keys + 1] = ARGV[i]
end
local missing = { 'again' }
for inc in string.gmatch(redis.call('HGET', K.names, owner) or '', '%d+') do
  known[#known + 1] = inc
  if not declared[inc] then
    missing[#missing + 1] = inc
  end
end
if #missing > 1 then
  return missing
end
local target = known[1]
local incarnation = target and read_incarnation(redis.call('HGET', K.lives, target))
local letters, add, drop = {}, {}, {}
for i, holder in ipairs(every('HMGET', KEYS[12], keys)) do
  local key, filed = keys[i], nil
  for _, inc in ipairs(known) do
    if redis.call('ZSCORE', declared[inc], key) then
      filed = inc
    end
  end
  if holder == owner then
    letters[i] = filed and 'i' or 'a'
    if not filed then
      add[#add + 1] = key
    end
  elseif filed then
    letters[i] = 'r'
    drop[#drop + 1] = { key, filed }
  else
    letters[i] = holder and 'm' or 'g'
  end
end
if act and #add + #drop > 0 then
  local no_way = may_write({ { 'ZADD', K.due, '0', 'x' }, { 'ZREM', K.due, 'x' }, { 'HINCRBY', K.counts, 'x', '1' } })
  if no_way then
    return no_way
  end
  must_be({ K.counts }, { K.ended })
end
if act and #add > 0 then
  if not incarnation or incarnation.ending ~= '-' then
    return { 'start' }
  end
  must_be({}, { declared[target] })
  local members = {}
  for i, key in ipairs(add) do
    members[2 * i - 1], members[2 * i] = '0', key
  end
  redis.call('HINCRBY', K.counts, target, each('ZADD', declared[target], members))
end
if act then
  for _, pair in ipairs(drop) do
    redis.call('ZREM', declared[pair[2]], pair[1])
    if redis.call('HINCRBY', K.counts, pair[2], -1) <= 0 then
      redis.call('ZREM', K.ended, pair[2])
    end
  end
end
return { target or '0', table.concat(letters) }
