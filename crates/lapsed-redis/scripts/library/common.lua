-- What the functions share. Comes after the constants, both preludes and the scripts, each of which
-- is here a function of its KEYS and ARGV under its file's name.
--
-- A caller names the application's keys; lapsed's own are derived from the first of them and are not
-- declared. A server lets a function do that as long as they lie on it, and they do: they carry the
-- first key's hash tag, and so lie in its slot wherever that slot moves to.
--
-- Everything that a caller sends is checked before a script sees it: what these functions write must
-- be readable to everybody else who works on the same keys.

local function no(code, what)
  return redis.error_reply(code .. ' ' .. what)
end

-- The part of a key that decides its slot.
local function hash_tag(key)
  local from = string.find(key, '{', 1, true)
  local to = from and string.find(key, '}', from + 1, true)
  if to and to > from + 1 then
    return string.sub(key, from + 1, to - 1)
  end
  return key
end

-- One system in the slot of `anchor`.
local function ground(kind, anchor, system)
  local prefix = 'lapsed:{' .. hash_tag(anchor) .. '}:' .. kind .. '/' .. system .. ':'
  local G = { kind = kind, anchor = anchor, base = {} }
  for i, what in ipairs(BASE) do
    G.base[i] = prefix .. what
    G[what] = prefix .. what
  end
  G.key = function(what)
    return prefix .. what
  end
  -- The base keys and then these.
  G.keys = function(more)
    local all = { unpack(G.base) }
    for _, key in ipairs(more) do
      all[#all + 1] = key
    end
    return all
  end
  return G
end

local function is_utf8(text)
  if not string.find(text, '[\128-\255]') then
    return true
  end
  for _, whole_character in ipairs({
    '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]', '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
    '[\194-\223][\128-\191]',
  }) do
    text = string.gsub(text, whole_character, 'x')
  end
  return not string.find(text, '[\128-\255]')
end

-- Owners, entries, sessions, broadcasters: UTF-8, 1 to 512 bytes, no control characters.
local function is_name(text)
  return text ~= '' and #text <= NAME_BYTES_MAX and not string.find(text, '%c')
    and not string.find(text, '\194[\128-\159]') and is_utf8(text)
end

local function is_system(text)
  return #text <= 64 and string.find(text, '^[%w_-]+$') ~= nil
end

-- A whole number of milliseconds, more than none and less than thirty years.
local function is_span(text)
  return string.find(text, '^[1-9]%d*$') ~= nil and #text <= 12
end

-- A number as `start` gave it, or empty for the newest incarnation.
local function is_claim(text)
  return text == '' or (string.find(text, '^[1-9]%d*$') ~= nil and #text <= 16)
end

local REUSED = 'this key was used before for a call with other arguments; use a new key for a new request'

-- What a script's first word means to the caller; nil when there is nothing to object.
local function objection(answer, who)
  if answer.err then
    return answer
  end
  local word = answer[1]
  if word == 'ended' then
    return no('LOST', 'incarnation ' .. answer[2] .. ' of `' .. who .. '` has ended; start a new incarnation')
  elseif word == 'stranger' then
    return no('LOST', 'that incarnation is not one of `' .. who .. '`, or long forgotten; start a new incarnation')
  elseif word == 'unknown' then
    return no('UNKNOWN', '`' .. who .. '` has no incarnation here; start one')
  elseif word == 'missing' then
    return no('MISSING', 'there is no session `' .. who .. '`')
  elseif word == 'reused' then
    return no('REUSED', REUSED)
  elseif word == 'again' then
    return no('ERR', 'a script asked for the same thing twice; nothing was changed')
  end
  return nil
end

-- Calls a script, and once more with what it asks for. Nothing else runs meanwhile, so that it does
-- not ask again. `call` is given all that was asked for so far.
local function until_told(asked, call)
  local answer = call(asked)
  if answer[1] == 'again' then
    for i = 2, #answer do
      asked[#asked + 1] = answer[i]
    end
    answer = call(asked)
  end
  return answer
end

-- While a library is loaded there is nothing but `register_function`, not even `pairs`: the rest is
-- there once a function runs.

-- Carries out a function once for a request: a repetition with the same key, function, keys and arguments
-- gets the same answer.
local function run_once(f, keys, args, key)
  local text, parts = { f.name }, { keys, args }
  for _, list in ipairs(parts) do
    for _, one in ipairs(list) do
      text[#text + 1] = #one .. ':' .. one
    end
  end
  local fingerprint = redis.sha1hex(table.concat(text))
  if f.takes then
    return f.run(keys, args, { key = key, fingerprint = fingerprint })
  end
  local G = ground(string.match(f.name, '^lapsed_(%a+)_'), keys[1], args[1])
  local function is_error(answer)
    return type(answer) == 'table' and answer.err ~= nil
  end
  local answer, reused = once(G.key('requests'), G.key('requests_at'), key, fingerprint, is_error, function()
    return f.run(keys, args)
  end)
  return reused and no('REUSED', REUSED) or answer
end

-- Registers a function: its name, how many keys and arguments it takes (at least, at most), what
-- those are, what it does, whether it only reads, and whether it keeps requests itself (`takes`). The first
-- argument is always the system. In front of it may be `key=` and the key of a request that may be repeated.
local function offer(f)
  redis.register_function({
    function_name = f.name,
    flags = f.reads and { 'no-writes' } or {},
    callback = function(keys, args)
      local key = args[1] and string.match(args[1], '^key=(.*)$')
      if key then
        table.remove(args, 1)
        if f.reads then
          return no('INVALID', f.name .. ' changes nothing: repeat it without `key=`')
        elseif not is_name(key) or #key > 255 or string.sub(key, 1, 1) == '!' then
          return no('INVALID', 'after `key=` come 1 to 255 bytes of UTF-8 without control characters, not beginning with `!`')
        end
      end
      if #keys < f.keys[1] or #keys > f.keys[2] or #args < f.args[1] or #args > f.args[2] then
        return no('INVALID', 'usage: FCALL ' .. f.name .. ' ' .. f.usage)
      end
      if not is_system(args[1]) then
        return no('INVALID', 'the first argument is the name of the system: 1 to 64 letters, digits, `_` or `-`')
      end
      if key then
        return run_once(f, keys, args, key)
      end
      return f.run(keys, args)
    end,
  })
end

redis.register_function({
  function_name = 'lapsed_version',
  flags = { 'no-writes' },
  callback = function()
    return VERSION
  end,
})
