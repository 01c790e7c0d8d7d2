-- Reconciles some sessions with their indexes: looks at each and, if `act`, heals what differs.
-- KEYS  the base keys, then: 12 disconnected  13 idle (KEYS 1 again: there is none)
--       then for each session two: session, ref_count
-- ARGV  1 `act` or `dry`  then the ids
-- Answers  one letter a session: i indexed as it should be, t active and not indexed, a added,
--          c corrected, r removed (it is active, or there is no such session), g gone, u unreadable
-- O(sessions * log disconnected)
local act = ARGV[1] == 'act'
local disconnected, idle = KEYS[12], KEYS[13] ~= KEYS[1] and KEYS[13] or nil
local now = clock()
local letters = {}
for n = 2, #ARGV do
  local id, session, ref_count = ARGV[n], KEYS[12 + 2 * (n - 1)], KEYS[13 + 2 * (n - 1)]
  local letter
  local h = redis.pcall('HMGET', session, 'last_disconnect', 'broadcaster_user_id')
  local indexed = redis.call('ZSCORE', disconnected, id)
  local since = idle and redis.call('ZSCORE', idle, id)
  local count = references(ref_count)
  if h.err or not count then
    letter = 'u'
  elseif redis.call('EXISTS', session) == 0 then
    letter = (indexed or since) and 'r' or 'g'
    if act and letter == 'r' then
      redis.call('ZREM', disconnected, id)
      if idle then
        redis.call('ZREM', idle, id)
      end
    end
  else
    local gone = to_ms(h[1] or '0')
    if not gone then
      letter = 'u'
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
      if idle and not since then
        letter = 'a'
      end
      if act and letter ~= 'i' then
        redis.call('ZADD', disconnected, h[1], id)
        if idle and not since then
          redis.call('ZADD', idle, whole(math.min(gone, now)), id)
        end
      end
    end
  end
  letters[#letters + 1] = letter
end
return table.concat(letters)
