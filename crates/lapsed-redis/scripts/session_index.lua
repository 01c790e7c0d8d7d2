-- Reconciles some sessions with their indexes: looks at each and, if `act`, heals what differs.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)
--       then for each session three: session, ref_count, references of each incarnation
-- ARGV  1 `act` or `dry`  then the ids
-- Answers  one letter a session: i indexed as it should be, t active and not indexed, a added,
--          c corrected, h its count raised to the references that incarnations have, r removed because it is
--          active, x removed because there is no such session (y: it was in `idle` only), g gone,
--          u unreadable
-- O(sessions * log disconnected)
local act = ARGV[1] == 'act'
local disconnected, idle = KEYS[12], KEYS[13] ~= KEYS[1] and KEYS[13] or nil
local letters = {}
for n = 2, #ARGV do
  local k = 8 + 3 * n
  local id, session, ref_count, refs = ARGV[n], KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local letter
  local h = redis.pcall('HMGET', session, 'last_disconnect', 'broadcaster_user_id')
  local indexed = redis.call('ZSCORE', disconnected, id)
  local since = idle and redis.call('ZSCORE', idle, id)
  local count = references(ref_count)
  if h.err or not count then
    letter = 'u'
  elseif redis.call('EXISTS', session) == 0 then
    letter = indexed and 'x' or since and 'y' or 'g'
    if act and letter ~= 'g' then
      redis.call('ZREM', disconnected, id)
      if idle then
        redis.call('ZREM', idle, id)
      end
    end
  else
    local gone = to_ms(h[1] or '0')
    -- More references than incarnations have may be those of an application that writes its own keys; fewer are a mistake.
    local owned = idle and owned_references(refs) or 0
    if not gone then
      letter = 'u'
    elseif owned > count then
      letter = 'h'
      if act then
        redis.call('SET', ref_count, whole(owned), 'KEEPTTL')
        redis.call('ZREM', disconnected, id)
        redis.call('ZREM', idle, id)
      end
    elseif gone == 0 or count > 0 then
      -- Active, or never connected to: not among the disconnected.
      local misplaced = indexed or (since and count > 0)
      letter = misplaced and 'r' or 't'
      if act and misplaced then
        redis.call('ZREM', disconnected, id)
        if idle and count > 0 then
          redis.call('ZREM', idle, id)
        end
      end
    else
      letter = 'i'
      if not indexed then
        letter = 'a'
      elseif to_ms(indexed) ~= gone then
        letter = 'c'
      end
      local right = since and idle_since(tonumber(since), gone) or gone
      if idle and not since then
        letter = 'a'
      elseif idle and right ~= tonumber(since) then
        letter = 'c'
      end
      if act and letter ~= 'i' then
        redis.call('ZADD', disconnected, h[1], id)
        if idle then
          redis.call('ZADD', idle, whole(right), id)
        end
      end
    end
  end
  letters[#letters + 1] = letter
end
return table.concat(letters)
