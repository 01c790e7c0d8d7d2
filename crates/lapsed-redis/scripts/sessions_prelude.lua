-- What the scripts of sessions share. Comes after `prelude`.
--
-- `session:{id}` (a hash), `ref_count:{id}` (a number), `broadcaster:{id}` (the id of its current
-- session) and the set of the disconnected are the application's, in seconds, as it knows them.
-- Beside them, for what is written through lapsed: `idle`, every session without a reference by the
-- millisecond since when; and for each session how many references each incarnation has.

local FIELDS_MAX = 500

-- A number as Redis and the application write it. Lua would also take `nan` (which is below nothing
-- and above nothing), `inf`, ` 1 ` and `0x10`. nil if it is none.
local function decimal(text)
  return string.match(text, '^%-?%d+%.?%d*[eE]?%+?%d*$') and tonumber(text)
end

-- A time that the application wrote: seconds or milliseconds, distinguished by their size. Whole
-- seconds may have been cut off: the end of that second counts, so that nothing is early (B8).
local function to_ms(text)
  local n = decimal(text)
  if not n or n <= 0 then
    return n and 0
  end
  if n >= 100000000000 then
    return math.floor(n)
  end
  if n == math.floor(n) then
    return (n + 1) * 1000
  end
  return math.ceil(n * 1000)
end

-- Whole seconds, never early.
local function to_seconds(ms)
  return whole(math.ceil(ms / 1000))
end

-- A value that may be absent, as text: '=' and the value, or nothing.
local function maybe(value)
  return value and ('=' .. value) or ''
end

-- Whether there is such a session. Raises the server's own error if its key holds another type: found
-- later, by the first write, it would leave half done what came before.
local function is_there(session)
  return redis.call('HLEN', session) > 0
end

-- How many references there are; nil if what is stored is not a number.
local function references(key)
  local ok = redis.pcall('GET', key)
  if type(ok) == 'table' then
    return nil
  end
  if not ok then
    return 0
  end
  local n = decimal(ok)
  return n and math.max(n, 0)
end

-- How many references all incarnations have to a session, by what each has of it.
local function owned_references(refs)
  local sum, all = 0, redis.call('HGETALL', refs)
  for i = 2, #all, 2 do
    sum = sum + tonumber(all[i])
  end
  return sum
end

-- Since when a session of which lapsed keeps `since` has nobody, if its hash says `gone`: what lapsed
-- itself writes there is less than two seconds later. More was written by hand, and counts.
local function idle_since(since, gone)
  return gone > since + 2000 and gone or since
end

-- Drops `mine` references of one incarnation to a session that is not there any more.
local function forget_references(refs, ref_count, inc, mine)
  redis.call('HDEL', refs, inc)
  local left = (references(ref_count) or 0) - mine
  if left > 0 then
    redis.call('SET', ref_count, whole(left), 'KEEPTTL')
  elseif mine > 0 then
    redis.call('DEL', ref_count)
  end
end

-- Nobody is connected any more: its grace begins. `S`: session, disconnected, idle (or nil).
local function mark_disconnected(S, id, now)
  redis.call('HSET', S.session, 'last_disconnect', to_seconds(now))
  redis.call('ZADD', S.disconnected, to_seconds(now), id)
  if S.idle then
    redis.call('ZADD', S.idle, whole(now), id)
  end
end

-- Somebody is connected, or said to be.
local function mark_active(S, id, now, count)
  redis.call('HSET', S.session, 'last_disconnect', '0')
  redis.call('ZREM', S.disconnected, id)
  if S.idle and count > 0 then
    redis.call('ZREM', S.idle, id)
  elseif S.idle then
    redis.call('ZADD', S.idle, whole(now), id)
  end
end

-- Everything about one session: {now, back, references, since when idle, value, broadcaster,
-- configuration, last disconnect in ms (0: none), last update}.
local function show(K, S, id, now, count)
  local back = presence(K.meta, now, 0, 0, false) or 0
  local h = redis.call('HMGET', S.session, 'value', 'broadcaster_user_id', 'config_json',
    'last_disconnect', 'last_update')
  local gone = to_ms(h[4] or '0') or 0
  local since = S.idle and redis.call('ZSCORE', S.idle, id)
  if not S.idle and gone > 0 then
    since = whole(gone)
  end
  if gone > 0 and since then
    gone = tonumber(since)
  end
  return { whole(now), whole(back), whole(count), maybe(since), maybe(h[1]), maybe(h[2]), maybe(h[3]),
    whole(gone), maybe(h[5]) }
end

-- Whether this user may do what changing a session takes: nil, or the error. Asked before the first
-- write, because a script that is refused in its middle is not undone.
local function may_change(K, S)
  return may_write({ { 'SET', S.session, 'x' }, { 'DEL', S.session }, { 'HSET', S.session, 'x', 'x' },
    { 'HDEL', K.meta, 'x' }, { 'HINCRBY', K.meta, 'x', '1' }, { 'ZADD', S.disconnected, '0', 'x' },
    { 'ZREM', S.disconnected, 'x' } })
end
