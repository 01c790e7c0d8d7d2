-- What every script begins with. No keys of its own: callers pass theirs.
--
-- Numbers go to Redis as text by `whole`: Lua would write large ones as 1.7e+12.

local CHUNK = 1000 -- the most arguments of one call, because `unpack` has a limit

local function whole(n)
  return string.format('%.0f', n)
end

-- The server's clock, in milliseconds and in microseconds.
local function clock()
  local t = redis.call('TIME')
  local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
  return math.floor(us / 1000), us
end

-- Calls COMMAND key ... with the members of `list`, in chunks; answers the sum of what was answered.
local function each(command, key, list)
  local sum = 0
  for from = 1, #list, CHUNK do
    sum = sum + redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, #list)))
  end
  return sum
end

-- The same for a command that answers one value a member.
local function every(command, key, list)
  if #list > 0 and #list <= CHUNK then
    return redis.call(command, key, unpack(list))
  end
  local all = {}
  for from = 1, #list, CHUNK do
    local part = redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, #list)))
    for i = 1, #part do
      all[#all + 1] = part[i]
    end
  end
  return all
end

-- Which run of the server this is, and since when all clients could reach it. A restarted server is back
-- since its start; a replica that was promoted, since now, because the time of its promotion is not known.
-- `seen` is when the caller last knew the server to answer, 0 if it never called `record_run`. If that is
-- longer ago than `gap`, this request was late and is treated as after an absence: the server or only the
-- caller may have stood still, so nothing is recorded for others (`record_absence` does that). A server that
-- has lost the record of its run (FLUSHALL) was away.
-- Writes only if `act`.
local function presence(meta, now, seen, gap, act)
  -- The server's own error does not say which command it is that is missing.
  if not redis.acl_check_cmd('INFO', 'server') then
    error(redis.error_reply('NOPERM this user may not call INFO'))
  end
  local info = redis.call('INFO', 'server')
  local run = string.match(info, 'run_id:(%x+)')
  local uptime = tonumber(string.match(info, 'uptime_in_seconds:(%d+)')) or 0
  local known = redis.call('HMGET', meta, 'run', 'back', 'waive')
  local back = tonumber(known[2] or 0)
  local fresh = known[1] ~= run
  if fresh then
    -- Both clocks are cut to whole seconds: the second after the one that it was started in.
    local since = math.min(now, (math.floor(now / 1000) - uptime + 1) * 1000)
    local replication = redis.call('INFO', 'replication')
    if string.match(replication, 'role:(%a+)') ~= 'master' then
      return nil
    end
    if string.match(replication, 'second_repl_offset:(%-?%d+)') ~= '-1' then
      since = now
    end
    back = math.max(back, since)
  end
  local emptied = seen > 0 and not known[1]
  local late = seen > 0 and now - seen > gap
  if act and (fresh or emptied) then
    back = emptied and now or back
    redis.call('HSET', meta, 'run', run, 'back', whole(back))
    if fresh and known[1] then
      redis.call('HSET', meta, 'jump', '1')
    end
  end
  if late or emptied then
    back = now
  end
  if now < tonumber(known[3] or 0) then
    back = 0
  end
  return back, run
end

-- Takes `count` new numbers of the counter `field`; answers the one before the first. No number is used
-- twice: a counter that is new, or on another server than before (which may have lost the last writes),
-- continues at the clock, or a million further on if that is more. The clock counts microseconds, which is
-- faster than numbers can be taken.
local function numbers(meta, field, count)
  local _, now = clock()
  local known = redis.call('HMGET', meta, field, 'jump')
  local last = tonumber(known[1] or 0)
  if known[1] and known[2] then
    for _, name in ipairs({ 'incarnation', 'receipt', 'term', 'token' }) do
      local n = redis.call('HGET', meta, name)
      if n then
        redis.call('HSET', meta, name, whole(math.max(tonumber(n) + 1000000, now)))
      end
    end
    redis.call('HDEL', meta, 'jump')
    last = tonumber(redis.call('HGET', meta, field))
  elseif not known[1] then
    last = now
  end
  -- A claim is handed out without a look at which run of the server this is.
  if field == 'token' then
    last = math.max(last, now)
  end
  redis.call('HSET', meta, field, whole(last + count))
  return last
end

-- One incarnation: `ttl:started:ending:ended:deadline:held:external:name`, ending `-` while it has not ended.
local function read_incarnation(packed)
  if not packed then
    return nil
  end
  local ttl, started, ending, ended, deadline, held, external, name =
    string.match(packed, '^(%d+):(%d+):([-dr]):(%d+):(%d+):(%d+):([01]):(.*)$')
  return {
    ttl = tonumber(ttl), started = tonumber(started), ending = ending, ended = tonumber(ended),
    deadline = tonumber(deadline), held = tonumber(held), external = external == '1', name = name,
  }
end

local function pack_incarnation(incarnation)
  return whole(incarnation.ttl) .. ':' .. whole(incarnation.started) .. ':' .. incarnation.ending .. ':' .. whole(incarnation.ended)
    .. ':' .. whole(incarnation.deadline) .. ':' .. whole(incarnation.held) .. ':' .. (incarnation.external and '1' or '0')
    .. ':' .. incarnation.name
end

-- The newest incarnation of a name, from its list `newest,older,...`.
local function newest(list)
  if not list then
    return nil
  end
  return string.match(list, '^%d+')
end

-- When an incarnation is over: never before it had a whole TTL since the server was back.
local function due_at(deadline, started, ttl, back)
  if back <= started then
    return deadline
  end
  return math.max(deadline, back + ttl)
end

-- The keys that most scripts of a system share, in this order.
local function base(KEYS)
  return { meta = KEYS[1], lives = KEYS[2], names = KEYS[3], due = KEYS[4], ended = KEYS[5],
    deaths = KEYS[6], past = KEYS[7], counts = KEYS[8], receipts = KEYS[9], batches = KEYS[10],
    batches_at = KEYS[11] }
end

-- Begins an incarnation, with the number `inc` or a new one.
local function begin(K, name, ttl, now, external, deadline, inc)
  if not inc then
    presence(K.meta, now, 0, 0, true)
    inc = whole(numbers(K.meta, 'incarnation', 1) + 1)
  end
  local incarnation = { ttl = ttl, started = now, ending = '-', ended = 0, deadline = 0, held = 0,
    external = external, name = name }
  redis.call('HSET', K.lives, inc, pack_incarnation(incarnation))
  local list = redis.call('HGET', K.names, name)
  redis.call('HSET', K.names, name, list and (inc .. ',' .. list) or inc)
  redis.call('ZADD', K.due, whole(deadline), inc)
  return inc, incarnation
end

-- Ends an incarnation: `how` is `d` (dead) or `r` (retired).
local function finish(K, inc, incarnation, how, now, deadline)
  incarnation.ending, incarnation.ended, incarnation.deadline = how, now, deadline
  incarnation.held = tonumber(redis.call('HGET', K.counts, inc) or 0)
  redis.call('HSET', K.lives, inc, pack_incarnation(incarnation))
  redis.call('ZREM', K.due, inc)
  redis.call('ZADD', K.past, whole(now), inc)
  if how == 'd' then
    redis.call('ZADD', K.deaths, whole(now), inc)
  end
  if incarnation.held > 0 then
    redis.call('ZADD', K.ended, whole(deadline), inc)
  end
end

-- Until when an owner that sends heartbeats without lapsed counts as alive, if its heartbeat key is valid for
-- another `left` ms (-1: for ever); nil if there is none. At most one TTL, because the key may be deleted
-- early.
local function good_until(now, left, ttl)
  if left == -1 then
    return now + ttl
  end
  return left > 0 and now + math.min(left, ttl) or nil
end

-- The record of one owner in an adopted registry, `first:good:held`: when it was first seen, until when its last
-- known heartbeat was good (0: it was never seen alive), and when a scan last found it holding something.
local function read_observed(record)
  if not record then
    return nil, 0, nil
  end
  local first, good, held = string.match(record, '^(%d+):(%d+):(%d+)$')
  return tonumber(first), tonumber(good or 0), tonumber(held)
end

local function pack_observed(first, good, held)
  return whole(first) .. ':' .. whole(good) .. ':' .. whole(held)
end

-- Records a heartbeat sent without lapsed: alive until `deadline`, even if the owner was declared dead before.
local function revive(K, inc, incarnation, deadline)
  if incarnation.ending ~= '-' then
    incarnation.ending, incarnation.ended, incarnation.deadline, incarnation.held = '-', 0, 0, 0
    redis.call('HSET', K.lives, inc, pack_incarnation(incarnation))
    redis.call('ZREM', K.past, inc)
    redis.call('ZREM', K.deaths, inc)
    redis.call('ZREM', K.ended, inc)
  end
  redis.call('ZADD', K.due, whole(deadline), inc)
end

-- Takes `count` new receipt numbers; answers the first, and the step from one to the next. Each of several
-- shards has its own residue, and numbers follow the clock: a number that a shard takes later is never
-- below its clock now, so a reader of all shards knows up to which number it has read everything.
-- All shards share 2048 numbers per millisecond.
local function receipt_numbers(meta, count, now, shards, shard)
  if shards == 1 then
    return numbers(meta, 'receipt', count) + 1, 1
  end
  local last = math.max(tonumber(redis.call('HGET', meta, 'receipt') or 0), now * math.floor(2048 / shards))
  redis.call('HSET', meta, 'receipt', whole(last + count))
  return (last + 1) * shards + shard, shards
end

-- A script is not rolled back when one of its commands is refused, so permissions are checked first. nil, or the error.
local function may_write(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM this user may not call ' .. command[1] .. ' on `' .. command[2] .. '`')
    end
  end
  return nil
end

-- Nor is it rolled back when a key has another type, so the type of each key is checked first. Raises
-- the server's own error.
local function must_be(hashes, sets)
  for _, key in ipairs(hashes) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs(sets) do
    redis.call('ZCARD', key)
  end
end

-- Records that a batch was carried out, and which receipts it wrote.
local function note_batch(K, sweeper, number, first, last, now)
  local field = sweeper .. '#' .. number
  redis.call('HSET', K.batches, field, whole(first) .. ',' .. whole(last))
  redis.call('ZADD', K.batches_at, whole(now), field)
end

-- Whether the caller may act: its term as leader (fencing), and that this batch was neither carried
-- out nor forbidden before. Answers nil, or why not: L not the leader, D done before, G forbidden.
local function refused(meta, batches, sweeper, number, term, now)
  if term ~= '' then
    local t = redis.call('HMGET', meta, 'term', 'until')
    if t[1] ~= term or now >= tonumber(t[2] or 0) then
      return 'L'
    end
  end
  local done = redis.call('HGET', batches, sweeper .. '#' .. number)
  if done then
    return done == 'never' and 'G' or 'D'
  end
  return nil
end
