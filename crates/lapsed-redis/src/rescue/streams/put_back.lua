-- Streams with a consumer group: an entry that a consumer was given and has not acknowledged is in the group's pending list. A
-- consumer lives while its heartbeat key exists, and while it called something for its group within the limit; without such a key,
-- also while the entry was delivered within the limit.
-- KEYS of a suspect   1 the stream  2 STREAM:dead (stream)
-- Words of a suspect  1 id of the entry  2 group  3 consumer  4 its heartbeat key, or empty
-- O(fields of the entry + consumers of the group) for each suspect
--
-- Who can come in between: the consumer's acknowledgement and somebody else's XCLAIM or XAUTOCLAIM (the entry is no longer
-- the consumer's), the consumer's next command (it is active again), its heartbeat. Each is one command, and this script asks for
-- all of it again. Taking the entry out and adding it again are one step: XACK, XDEL and XADD.
local TYPES = { 'stream', 'stream' }
local WRITES = { { 'XADD', 1, '*', 'x', 'x' }, { 'XACK', 1, 'x', '0-1' }, { 'XDEL', 1, '0-1' }, { 'XADD', 2, '*', 'x', 'x' } }
-- More values than this cannot be handed to one call.
local VALUES_MAX = 7000

local function field(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then
      return list[i + 1]
    end
  end
end

-- How long a consumer has been idle, in milliseconds. Asked once for each group.
local groups = {}
local function idle_of(s)
  local name = s.keys[1] .. '\n' .. s.words[2]
  if not groups[name] then
    groups[name] = {}
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', s.keys[1], s.words[2])) do
      groups[name][field(consumer, 'name')] = tonumber(field(consumer, 'idle'))
    end
  end
  return groups[name][s.words[3]]
end

local function judge_consumer(s, at, idle)
  if s.words[4] ~= '' then
    local since = silent_since(s.owner, at) or (at.act and at.now or at.now - at.limit)
    s.deadline = math.max(tonumber(since), at.now - (idle_of(s) or idle)) + at.limit
    return (redis.call('EXISTS', s.words[4]) == 1 or at.now < s.deadline) and 'A' or nil
  end
  s.deadline = at.now - math.min(idle, idle_of(s) or idle) + at.limit
  return at.now < s.deadline and 'A' or nil
end

local function judge(s, at)
  local id, group = s.words[1], s.words[2]
  local pending = redis.pcall('XPENDING', s.keys[1], group, id, id, '1', s.words[3])
  if pending['err'] or #pending == 0 then
    return 'G'
  end
  local code = judge_consumer(s, at, tonumber(pending[1][3]))
  if code then
    return code
  end
  local entry = redis.call('XRANGE', s.keys[1], id, id)[1]
  if not entry then
    s.is_dangling = true
    return 'G'
  end
  s.fields = entry[2]
  s.is_shared = once('groups of ' .. s.keys[1], function()
    return #redis.call('XINFO', 'GROUPS', s.keys[1]) > 1
  end)
  if #s.fields > VALUES_MAX then
    s.text = 'entry ' .. id .. ' has more than ' .. VALUES_MAX / 2 .. ' fields'
    return 'U'
  end
  if s.is_shared then
    s.text = '`' .. s.keys[1] .. '` has several groups: an entry that is added again would reach all of them'
    return 'U'
  end
  s.read_payload = function()
    return cjson.encode(s.fields)
  end
  return nil
end

local function take_out(s)
  redis.call('XACK', s.keys[1], s.words[2], s.words[1])
  redis.call('XDEL', s.keys[1], s.words[1])
end

-- Consumers ask for entries that nobody was given yet (`>`), so that only a new entry reaches the living. It goes to the end: a
-- stream has no other place. The count of crashes goes on under the new id.
local function put_back(s)
  take_out(s)
  local id = redis.call('XADD', s.keys[1], '*', unpack(s.fields))
  s.next_id = s.id:sub(1, #s.id - #s.words[1]) .. id
end

local function bury(s)
  take_out(s)
  s.letter = redis.call('XADD', s.keys[2], '*', unpack(s.fields))
end

local function discard(s)
  take_out(s)
end

-- An entry that was deleted or trimmed while it was pending: nobody can work on it.
local function after(s)
  if s.is_dangling then
    redis.call('XACK', s.keys[1], s.words[2], s.words[1])
  end
end

-- Nothing says when a consumer came.
local function came_after()
  return false
end
