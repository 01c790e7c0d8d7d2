-- Streams: a dead letter is an entry of `STREAM:dead`; l.place is its id. Keys as in `put_back.lua`. A stream has no other place than its end.
local USES = { [1] = 'stream', [2] = 'stream' }
local WRITES = { { 'XADD', 1, '*', 'x', 'x' }, { 'XDEL', 2, '0-1' } }

local function find(l)
  local entry = redis.call('XRANGE', l.keys[2], l.place, l.place)[1]
  return entry and cjson.encode(entry[2]) or nil
end

local function retry(l)
  local entry = redis.call('XRANGE', l.keys[2], l.place, l.place)[1]
  redis.call('XADD', l.keys[1], '*', unpack(entry[2]))
  redis.call('XDEL', l.keys[2], l.place)
end

local remove = nil
