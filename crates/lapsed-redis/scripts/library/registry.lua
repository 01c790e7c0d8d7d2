-- Entries: `lapsed_registry_register`, `_claim`, `_unregister`, `_lookup`.
-- KEYS  1 the registry's hash
-- ARGV  1 system  2 owner  3 incarnation or empty  4... keys; lookup: 1 system  2... keys
-- Answers  one a key. register, claim: new, kept, moved, taken; unregister: 1 or 0; lookup: the
--          owner, or nil if there is no entry or its owner is dead
-- O(keys * log held)

local WORDS = { n = 'new', k = 'kept', m = 'moved', t = 'taken' }

-- The keys among the arguments, from one on; nil if one is none.
local function entries(args, from)
  local list = {}
  for i = from, #args do
    if not is_name(args[i]) then
      return nil
    end
    list[#list + 1] = args[i]
  end
  return list
end

local function append(list, more)
  for _, one in ipairs(more) do
    list[#list + 1] = one
  end
  return list
end

-- What these incarnations hold.
local function held(G, incs)
  local keys = {}
  for i, inc in ipairs(incs) do
    keys[i] = G.key('held:' .. inc)
  end
  return keys
end

local function register(G, owner, inc, how, wanted)
  local answer = until_told(inc ~= '' and { inc } or {}, function(asked)
    local keys = append({ G.lives, G.names, G.counts, G.anchor }, held(G, asked))
    return registry_register(keys, append(append({ owner, inc, how, #asked }, asked), wanted))
  end)
  local refused = objection(answer, owner)
  if refused then
    return refused
  end
  -- After `m` and `t` come the other's name and incarnation, and a name may look like a word.
  local words, at = {}, 2
  while answer[at] do
    local letter = answer[at]
    words[#words + 1] = WORDS[letter]
    at = at + ((letter == 'm' or letter == 't') and 3 or 1)
  end
  return words
end

local function unregister(G, owner, inc, wanted)
  local answer = until_told({ inc }, function(asked)
    local incarnation = asked[#asked]
    local keys = { G.lives, G.names, G.counts, G.anchor, G.key('held:' .. incarnation) }
    return registry_unregister(keys, append({ owner, inc, incarnation }, wanted))
  end)
  local refused = objection(answer, owner)
  if refused then
    return refused
  end
  local removed = {}
  for i = 2, #answer do
    removed[i - 1] = tonumber(answer[i])
  end
  return removed
end

-- Ended, or past its deadline: a lookup must not answer a dead owner.
local function lookup(G, wanted)
  local answer = until_told({}, function(asked)
    local keys = append(G.keys({ G.anchor }), held(G, asked))
    return registry_find(keys, append(append({ #asked }, asked), wanted))
  end)
  local refused = objection(answer, G.anchor)
  if refused then
    return refused
  end
  local now, back, owners = tonumber(answer[1]), tonumber(answer[2]), {}
  for i = 1, #wanted do
    local owner, packed, deadline = answer[4 * i - 1], answer[4 * i + 1], answer[4 * i + 2]
    local incarnation = packed ~= '' and read_incarnation(packed)
    -- An owner without an incarnation was written by the application itself: it is believed. So is one that
    -- beats without lapsed, until it is declared dead: where its heartbeat is is not known here.
    local dead = incarnation and (incarnation.ending ~= '-'
      or not incarnation.external and due_at(tonumber(deadline) or 0, incarnation.started, incarnation.ttl, back) <= now)
    owners[i] = owner ~= '' and not dead and owner or false
  end
  return owners
end

local WRONG_KEYS = 'a key has 1 to 512 bytes of UTF-8 without control characters'

local function of_owner(name, run)
  offer({
    name = 'lapsed_registry_' .. name, keys = { 1, 1 }, args = { 4, 3 + KEYS_MAX },
    usage = '1 REGISTRY SYSTEM OWNER INCARNATION KEY... (at most ' .. KEYS_MAX .. ')',
    run = function(keys, args)
      local wanted = entries(args, 4)
      if not wanted or not is_name(args[2]) then
        return no('INVALID', 'an owner or ' .. WRONG_KEYS)
      end
      if not is_claim(args[3]) then
        return no('INVALID', 'INCARNATION is a number as `start` answers it, or empty')
      end
      return run(ground('registry', keys[1], args[1]), args[2], args[3], wanted)
    end,
  })
end

of_owner('register', function(G, owner, inc, wanted)
  return register(G, owner, inc, 'always', wanted)
end)

-- The same, but an entry that another owner holds stays with it.
of_owner('claim', function(G, owner, inc, wanted)
  return register(G, owner, inc, 'free', wanted)
end)

of_owner('unregister', unregister)

offer({
  name = 'lapsed_registry_lookup', keys = { 1, 1 }, args = { 2, 1 + KEYS_MAX }, reads = true,
  usage = '1 REGISTRY SYSTEM KEY... (at most ' .. KEYS_MAX .. ')',
  run = function(keys, args)
    local wanted = entries(args, 2)
    if not wanted then
      return no('INVALID', WRONG_KEYS)
    end
    return lookup(ground('registry', keys[1], args[1]), wanted)
  end,
})
