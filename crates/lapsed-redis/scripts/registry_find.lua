-- What is stored under each key, and the incarnation that holds it.
-- KEYS  the base keys, then: 12 the registry's hash  13... what some incarnations hold
-- ARGV  1 how many of KEYS 13...  then their incarnations, then the keys
-- Answers  {'again', incarnation...} | {now_ms, back_ms, [owner or '', incarnation, packed incarnation or '',
--          deadline_ms or ''] a key}
-- O(keys)
local K = base(KEYS)
local now = clock()
local back = presence(K.meta, now, 0, 0, false) or 0
local declared, missing, wanted = {}, {}, {}
local given = tonumber(ARGV[1])
for i = 1, given do
  declared[ARGV[1 + i]] = KEYS[12 + i]
end
for i = 2 + given, #ARGV do
  wanted[#wanted + 1] = ARGV[i]
end
local holders = every('HMGET', KEYS[12], wanted)
local answer = { whole(now), whole(back) }
for i, key in ipairs(wanted) do
  local name, holder = holders[i], nil
  if name then
    local list = redis.call('HGET', K.names, name)
    -- A name with one incarnation needs no look at what it holds.
    if list and not string.find(list, ',', 1, true) then
      holder = list
    else
      for inc in string.gmatch(list or '', '%d+') do
        if not declared[inc] then
          missing[inc] = true
        elseif redis.call('ZSCORE', declared[inc], key) then
          holder = inc
        end
      end
    end
  end
  answer[#answer + 1] = name or ''
  answer[#answer + 1] = holder or '0'
  answer[#answer + 1] = holder and redis.call('HGET', K.lives, holder) or ''
  answer[#answer + 1] = holder and redis.call('ZSCORE', K.due, holder) or ''
end
if next(missing) then
  answer = { 'again' }
  for inc in pairs(missing) do
    answer[#answer + 1] = inc
  end
end
return answer
