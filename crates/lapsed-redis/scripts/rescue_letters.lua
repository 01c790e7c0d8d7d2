-- Jobs of a foreign job system that lapsed has given up: each is where the system keeps such jobs, and lapsed remembers which. In
-- front of this stands the part of one system (`src/rescue/SYSTEM/letters.lua`), which defines, for a letter `l` with l.id, l.owner, l.queue, and
-- with l.keys and l.words as `put_back.lua` had them for the job (words of more than 1,000 bytes are empty), and l.place as its `bury` left it:
--   USES    the type of each key that it uses, by its number
--   WRITES  the commands that `retry` and `remove` call, each with the number of its key
--   find(l)             the job as text if it is still where `bury` put it; nil if not
--   retry(l, at, front) the job waits on its queue again, as the system's own command for it would do; nil: the system itself must do it
--   remove(l)           the job is gone; nil: the system itself must do it
-- KEYS  1 letters (hash, lapsed's own)  2 crashes (hash)  3 crashes by time (sorted set); then what USES says, which
--       the letters name
-- ARGV  1 `read`, `forget`, `retry` or `remove`  2 how many bytes of each text are answered at most  3 `front` or `back`; then ids
-- Answers  {now_ms}, then for each id its code, and with D its time, owner, note and text, with U why
--          codes: D it is there, G it is not, U a key has another type, R it was put back, X it was removed
-- O(ids * what `find` costs). `read` writes nothing; `forget` removes what is not there any more from lapsed's own hash.
local mode, most, front = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'front'
local letters, crashes, crashes_at = KEYS[1], KEYS[2], KEYS[3]
local at = { now = clock() }

local function unusable(l)
  for i, wanted in pairs(USES) do
    local kind = redis.call('TYPE', l.keys[i])['ok']
    if kind ~= 'none' and kind ~= wanted then
      return '`' .. l.keys[i] .. '` is a ' .. kind .. ', not a ' .. wanted
    end
  end
  return nil
end

local function not_allowed(l)
  local wanted = { { 'HDEL', letters, 'x' }, { 'HDEL', crashes, 'x' }, { 'ZREM', crashes_at, 'x' } }
  for i, write in ipairs(WRITES) do
    wanted[i + 3] = { unpack(write) }
    wanted[i + 3][2] = l.keys[write[2]]
  end
  return may_write(wanted)
end

local function forget(id)
  redis.call('HDEL', letters, id)
  redis.call('HDEL', crashes, id)
  redis.call('ZREM', crashes_at, id)
end

local answer = { whole(at.now) }
local function say(...)
  for _, word in ipairs({ ... }) do
    answer[#answer + 1] = word
  end
end

for n = 4, #ARGV do
  local id = ARGV[n]
  local noted = redis.call('HGET', letters, id)
  local packed = noted and cmsgpack.unpack(noted)
  local l = packed and { id = id, at = packed[1], owner = packed[2], note = packed[3], queue = packed[4], place = packed[5],
    keys = packed[6], words = packed[7] }
  local why = l and unusable(l)
  local text = l and not why and find(l) or nil
  if why then
    say('U', why)
  elseif not text then
    if noted and mode == 'forget' then
      redis.call('HDEL', letters, id)
    end
    say('G')
  elseif mode == 'retry' or mode == 'remove' then
    local no = not_allowed(l)
    if no then
      return no
    end
    if mode == 'retry' then
      retry(l, at, front)
    else
      remove(l)
    end
    forget(id)
    say(mode == 'retry' and 'R' or 'X')
  else
    say('D', l.at, l.owner, l.note, string.sub(text, 1, most))
  end
end
return answer
