-- Streams with a consumer group. See `rescue_drift.lua`.
-- Kinds  entry     KEYS 1 the stream; words id of the entry, group, consumer
--        consumer  KEYS 1 the stream; words group, consumer, for how many ms it must have been idle
-- O(1) for an entry, O(consumers of the group) for a consumer
--
-- A consumer that works on an entry that was deleted acknowledges it in vain, before and after. One that was removed is there again as soon as it
-- asks for entries.
local function field(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then
      return list[i + 1]
    end
  end
end

local function check_entry(f)
  local id, group = f.words[1], f.words[2]
  local pending = redis.pcall('XPENDING', f.keys[1], group, id, id, '1', f.words[3])
  if pending['err'] or #pending == 0 or redis.call('XRANGE', f.keys[1], id, id)[1] then
    return 'G'
  end
  return nil
end

local function check_consumer(f)
  local consumers = redis.pcall('XINFO', 'CONSUMERS', f.keys[1], f.words[1])
  for _, one in ipairs(consumers['err'] and {} or consumers) do
    if field(one, 'name') == f.words[2] then
      return (field(one, 'pending') > 0 or field(one, 'idle') < tonumber(f.words[3])) and 'A' or nil
    end
  end
  return 'G'
end

local KINDS = {
  entry = {
    types = { 'stream' },
    writes = { { 'XACK', 1, 'x', '0-1' } },
    check = check_entry,
    heal = function(f) redis.call('XACK', f.keys[1], f.words[2], f.words[1]) end,
  },
  consumer = {
    types = { 'stream' },
    writes = { { 'XGROUP', 'DELCONSUMER', 1, 'x', 'x', key = 3 } },
    check = check_consumer,
    heal = function(f) redis.call('XGROUP', 'DELCONSUMER', f.keys[1], f.words[1], f.words[2]) end,
  },
}
