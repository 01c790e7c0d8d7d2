-- Sessions: `lapsed_sessions_activate`, `_update`, `_get`, `_connect`, `_disconnect`, `_resume`,
-- `_delete`.
-- KEYS  1 the set of the disconnected  2 the session's hash  3 its count of references
--       4 what stands before a broadcaster's name in the key of its pointer (`broadcaster:`): which
--         pointer has to go is known only when the session is looked at
-- ARGV  1 system  2 id, then: connect, disconnect 3 owner 4 incarnation or empty; activate, update
--       [field value]...
-- Answers  activate: 1 if it was made, else 0; update, resume: how many references there are;
--          get: {field, value...}; connect, disconnect: {references, the caller's, incarnation};
--          delete: 1. Errors: MISSING, and of delete `ACTIVE references`
-- O(log disconnected)

local NO_POINTER = 'this session has a broadcaster: the fourth key is what stands before its name in the '
  .. 'key of its pointer, for example `broadcaster:`'

-- The key of a broadcaster's pointer; nil if it is not known.
local function pointer(G, broadcaster)
  if broadcaster == '' then
    return G.meta
  end
  return G.broadcasters and (G.broadcasters .. broadcaster)
end

-- Calls a script again with the session's broadcaster, once its answer names it.
local function of_broadcaster(G, call)
  local answer = until_told({ '' }, function(asked)
    local before = asked[#asked]
    return pointer(G, before) and call(before) or no('INVALID', NO_POINTER)
  end)
  return objection(answer, G.id) or answer
end

local function write(G, op, wanted, fields)
  return of_broadcaster(G, function(before)
    local after = wanted or before
    if not pointer(G, after) then
      return no('INVALID', NO_POINTER)
    end
    local keys = G.keys({ G.anchor, G.key('idle'), G.session, G.ref_count, G.key('pointers'),
      pointer(G, after), pointer(G, before) })
    return session_write(keys, { op, G.id, after, before, unpack(fields) })
  end)
end

local function hold(G, op, owner, inc)
  local answer = until_told({ inc }, function(asked)
    local incarnation = asked[#asked]
    local keys = G.keys({ G.anchor, G.key('idle'), G.session, G.ref_count, G.key('refs:' .. G.id),
      incarnation ~= '' and G.key('held:' .. incarnation) or G.meta })
    return session_reference(keys, { op, G.id, owner, inc, incarnation })
  end)
  return objection(answer, answer[1] == 'missing' and G.id or owner) or answer
end

local function delete(G)
  return of_broadcaster(G, function(before)
    local keys = G.keys({ G.anchor, G.key('idle'), G.session, G.ref_count, G.key('pointers'),
      pointer(G, before), G.key('refs:' .. G.id) })
    return session_delete(keys, { G.id, before })
  end)
end

-- The fields that a session carries, and the broadcaster among them; nil and why not.
local function profile(args)
  local fields, broadcaster, bytes = {}, nil, 0
  for i = 3, #args, 2 do
    local field, value = args[i], args[i + 1]
    if field == 'broadcaster_user_id' and value and is_name(value) then
      broadcaster = value
    elseif (field == 'value' or field == 'config_json') and value and is_utf8(value) then
      bytes = bytes + #value
    else
      return nil, 'after the id come pairs of a field (value, broadcaster_user_id or config_json) and its '
        .. 'value, which is UTF-8, and a name for the broadcaster'
    end
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if bytes > PROFILE_BYTES_MAX then
    return nil, 'value and config_json together have at most ' .. PROFILE_BYTES_MAX .. ' bytes'
  end
  return fields, broadcaster
end

-- As `session_write` answers `get`, in pairs; what is not set is left out.
local function pairs_of(shown)
  local references, gone = shown[4], tonumber(shown[9])
  local answer = { 'references', references }
  local function put(field, value)
    if value then
      answer[#answer + 1], answer[#answer + 2] = field, value
    end
  end
  put('value', string.match(shown[6], '^=(.*)$'))
  put('broadcaster_user_id', string.match(shown[7], '^=(.*)$'))
  put('config_json', string.match(shown[8], '^=(.*)$'))
  put('disconnected_ms', references == '0' and gone > 0 and whole(gone))
  put('last_update', string.match(shown[10], '^=(.*)$'))
  return answer
end

local function of_session(name, usage, args, run, reads)
  offer({
    name = 'lapsed_sessions_' .. name, keys = { 3, 4 }, args = args, reads = reads,
    usage = 'KEYS DISCONNECTED SESSION REF_COUNT [BROADCASTER_PREFIX] SYSTEM ID' .. usage,
    run = function(keys, args)
      local id = args[2]
      if not is_name(id) then
        return no('INVALID', 'a session has 1 to 512 bytes of UTF-8 without control characters')
      end
      for i = 2, 3 do
        if not string.find(keys[i], id, 1, true) then
          return no('INVALID', '`' .. keys[i] .. '` is not a key of the session `' .. id .. '`')
        end
      end
      local G = ground('sessions', keys[1], args[1])
      G.id, G.session, G.ref_count, G.broadcasters = id, keys[2], keys[3], keys[4]
      return run(G, args)
    end,
  })
end

-- `at`: which part of the script's answer is the function's.
local function writes(name, at)
  of_session(name, ' [FIELD VALUE]...', { 2, 8 }, function(G, args)
    local fields, broadcaster = profile(args)
    if not fields then
      return no('INVALID', broadcaster)
    end
    local answer = write(G, name, broadcaster, fields)
    return answer.err and answer or tonumber(answer[at])
  end)
end

writes('activate', 1)
writes('update', 4)

of_session('get', '', { 2, 2 }, function(G)
  local answer = write(G, 'get', nil, {})
  return answer.err and answer or pairs_of(answer)
end, true)

local function holds(name)
  of_session(name, ' OWNER INCARNATION', { 4, 4 }, function(G, args)
    if not is_name(args[3]) or not is_claim(args[4]) then
      return no('INVALID', 'an owner has 1 to 512 bytes of UTF-8 without control characters; INCARNATION is '
        .. 'a number as `start` answers it, or empty')
    end
    local answer = hold(G, name, args[3], args[4])
    return answer.err and answer or { tonumber(answer[2]), tonumber(answer[3]), answer[1] }
  end)
end

holds('connect')
holds('disconnect')

of_session('resume', '', { 2, 2 }, function(G)
  local answer = hold(G, 'resume', '', '')
  return answer.err and answer or tonumber(answer[2])
end)

of_session('delete', '', { 2, 2 }, function(G)
  local answer = delete(G)
  if answer[1] == 'active' then
    return no('ACTIVE', answer[2])
  end
  return answer.err and answer or 1
end)
