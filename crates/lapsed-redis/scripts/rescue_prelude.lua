-- What the decisive step of every foreign job system may use, before its own part.

-- The type of a key when the batch was judged, `none` if it did not exist. It is asked for once, before the first write.
local kinds = {}
local function kind_of(key)
  local kind = kinds[key]
  if not kind then
    kind = redis.call('TYPE', key)['ok']
    kinds[key] = kind
  end
  return kind
end

-- A value that is the same for all suspects that name it: `ask` is called once.
local asked = {}
local function once(name, ask)
  if asked[name] == nil then
    asked[name] = ask()
  end
  return asked[name]
end

-- Since when an owner is known to show no sign of life, as lapsed noted it (false if it has not), and the last that the owner
-- had done by then, if its system's keys tell.
local silences = {}
local function silent_since(owner, at)
  local known = silences[owner]
  if not known then
    local noted = redis.call('HGET', at.silence, owner)
    known = noted and { string.match(noted, '^%d+') or '1e15', string.match(noted, ' (.*)$') or '' } or { false, '' }
    silences[owner] = known
  end
  return known[1], known[2]
end

-- Whether a list has this element. The `at.count` that were added first are read once, because nearly all suspects are among them;
-- the list has its oldest at the right.
-- O(1), or O(elements to the right) for one that is not
local oldest_of = {}
local function is_listed(key, element, at)
  local oldest = oldest_of[key]
  if not oldest then
    oldest = {}
    for _, one in ipairs(redis.call('LRANGE', key, -at.count - 20, -1)) do
      oldest[one] = true
    end
    oldest_of[key] = oldest
  end
  return oldest[element] or redis.call('LPOS', key, element, 'RANK', '-1')
end

-- One command for the elements of many suspects, called when all were put back. The elements keep their order.
local gathered = {}
local gathered_lists = {}
local function gather(command, key, ...)
  local lists = gathered[command]
  if not lists then
    lists = {}
    gathered[command] = lists
  end
  local list = lists[key]
  if not list then
    list = { command = command, key = key }
    lists[key], gathered_lists[#gathered_lists + 1] = list, list
  end
  local count = #list
  for i = 1, select('#', ...) do
    list[count + i] = (select(i, ...))
  end
end

local function call_gathered()
  for _, list in ipairs(gathered_lists) do
    each(list.command, list.key, list)
  end
end
