-- Owner functions, the same for registries, sessions and jobs: `lapsed_KIND_start`, `_beat`, `_retire`.
-- KEYS  1 the registry's hash, the set of the disconnected, or the prefix of jobs in flight
--       2 the owner's heartbeat key, if others read it (registries only)
-- ARGV  1 system  2 owner, then: start 3 ttl_ms [4 incarnation]; beat 3 incarnation or empty
--       [4 ttl_ms]; retire 3 incarnation or empty
-- Answers  start, beat: {incarnation, deadline_ms}; retire: incarnation

local function beat(G, owner, inc, ttl)
  local answer = owner_beat({ G.lives, G.names, G.due, G.heartbeat or G.lives }, { owner, inc })
  if answer[1] == 'unknown' and ttl then
    answer = owner_start(G.keys({ G.heartbeat or G.meta }), { owner, ttl, 'unless_known', '' })
  end
  return objection(answer, owner) or { answer[1], tonumber(answer[2]) }
end

-- With the number that another shard gave it, an incarnation is begun only once.
local function start(G, owner, ttl, inc)
  local answer = owner_start(G.keys({ G.heartbeat or G.meta }), { owner, ttl, 'new', inc })
  if not answer.err and not answer[2] then
    return beat(G, owner, inc)
  end
  return objection(answer, owner) or { answer[1], tonumber(answer[2]) }
end

local function retire(G, owner, inc)
  local answer = owner_end(G.keys({ G.heartbeat or G.meta }), { owner, inc, 'r' })
  if not answer.err and answer[2] and answer[2] ~= '-' then
    answer = { 'ended', answer[1] }
  end
  return objection(answer, owner) or answer[1]
end

local function lives_of(kind, most_keys, prefix)
  local function lives(name, usage, args, run)
    offer({
      name = 'lapsed_' .. kind .. '_' .. name, keys = { 1, most_keys }, args = args, usage = prefix .. usage,
      run = function(keys, args)
        local owner = args[2]
        if not is_name(owner) then
          return no('INVALID', 'an owner has 1 to 512 bytes of UTF-8 without control characters')
        end
        if keys[2] and not string.find(keys[2], owner, 1, true) then
          return no('INVALID', 'the heartbeat key `' .. keys[2] .. '` is not that of `' .. owner .. '`')
        end
        local G = ground(kind, keys[1], args[1])
        G.heartbeat = keys[2]
        return run(G, owner, args)
      end,
    })
  end
  local SPAN = 'TTL_MS is a whole number of milliseconds'
  local CLAIM = 'INCARNATION is a number as `start` answers it, or empty'

  lives('start', 'TTL_MS [INCARNATION]', { 3, 4 }, function(G, owner, args)
    local inc = args[4] or ''
    if not is_span(args[3]) or not is_claim(inc) then
      return no('INVALID', SPAN .. ', ' .. CLAIM)
    end
    return start(G, owner, args[3], inc)
  end)

  lives('beat', 'INCARNATION [TTL_MS]', { 3, 4 }, function(G, owner, args)
    if not is_claim(args[3]) or (args[4] and not is_span(args[4])) then
      return no('INVALID', CLAIM .. ', ' .. SPAN)
    end
    return beat(G, owner, args[3], args[4])
  end)

  lives('retire', 'INCARNATION', { 3, 3 }, function(G, owner, args)
    if not is_claim(args[3]) then
      return no('INVALID', CLAIM)
    end
    return retire(G, owner, args[3])
  end)
end

lives_of('registry', 2, 'KEYS REGISTRY [HEARTBEAT] SYSTEM OWNER ')
lives_of('sessions', 1, '1 DISCONNECTED SYSTEM OWNER ')
lives_of('inflight', 1, '1 PREFIX SYSTEM OWNER ')
