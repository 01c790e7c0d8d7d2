-- The decisive step: declares silent who is.
-- KEYS  1 meta  2 online  3 deactivated  4 versions  5 doomed  6 doomed_at  7 missing  8 snapshot
-- ARGV  1 term, or empty  2 `reclaim` or `dry`  3 seen_ms  4 gap_ms  5 stale_ms  6 and 7 what stands before and
--       after a name in a heartbeat's key  8 the same before a name in an alive key, or empty, then for each, nobody
--       twice: name  epoch
-- Answers  one a name: `epoch:beat:decided` silent (also if that was decided before), or a letter: M moved, A alive,
--          S store away, U unreadable, L not the leader
-- O(names * log doomed)
--
-- Nothing can come in between, because it is one script. All reads come before the first write, and the first write
-- is what is remembered of the silent: what could fail (a wrong type, no permission, no memory) fails before
-- anything has changed.
local now, act, stale = clock(), ARGV[2] == 'reclaim', tonumber(ARGV[5])
local before, after = ARGV[6], ARGV[7]
local ids, epochs, answer = {}, {}, {}
for at = 9, #ARGV, 2 do
  ids[#ids + 1], epochs[#epochs + 1] = ARGV[at], ARGV[at + 1]
end
if #ids == 0 then
  return answer
end
local known = redis.call('HMGET', KEYS[1], 'seeded', 'kept', 'losses', 'missed', 'term', 'until')
if act then
  if ARGV[1] ~= '' and (known[5] ~= ARGV[1] or now >= tonumber(known[6] or 0)) then
    for i = 1, #ids do
      answer[i] = 'L'
    end
    return answer
  end
  local heartbeat = before .. ids[1] .. after
  local no_way = may_change(KEYS, heartbeat, heartbeat) or may_write({ { 'HSET', KEYS[5], 'x', 'x' },
    { 'ZADD', KEYS[6], '0', 'x' }, { 'HSET', KEYS[7], 'x', 'x' } })
  if no_way then
    return no_way
  end
end
must_be_own(KEYS)
local seeded = is_seeded(KEYS, known)
local versions, dooms = every('HMGET', KEYS[4], ids), every('HMGET', KEYS[5], ids)
local missed = every('HMGET', KEYS[7], ids)
local online, beats = every('SMISMEMBER', KEYS[2], ids), beats_of(before, ids, after, now)
local back = presence(KEYS[1], now, tonumber(ARGV[3]), tonumber(ARGV[4]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local away = not seeded or now < back + stale
local silent, at, keys, marks, newly, found = {}, {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local _, epoch = version_of(versions[i])
  -- One that is missing counts from when that was first noticed: a key that was dropped is not a death.
  local last = beats[i] or tonumber(missed[i] or now)
  if dooms[i] then
    answer[i] = dooms[i]
  elseif online[i] == 0 or epoch ~= epochs[i] then
    answer[i] = 'M'
  elseif last == 'u' then
    answer[i] = 'U'
  elseif now < last + stale then
    answer[i] = 'A'
    if not beats[i] and not missed[i] then
      newly[#newly + 1], newly[#newly + 2] = id, whole(now)
    elseif beats[i] and missed[i] then
      found[#found + 1] = id
    end
  elseif away then
    answer[i] = 'S'
  else
    answer[i] = epoch .. ':' .. whole(beats[i] or 0) .. ':' .. whole(now)
    silent[#silent + 1], marks[#marks + 1], marks[#marks + 2] = id, id, answer[i]
    at[#at + 1], at[#at + 2] = whole(now), id
    keys[#keys + 1] = before .. id .. after
    if ARGV[8] ~= '' then
      keys[#keys + 1] = ARGV[8] .. id
    end
  end
end
if not act then
  return answer
end
if #newly > 0 then
  put(KEYS[7], newly)
  redis.call('HSET', KEYS[1], 'missed', '1')
end
if #silent > 0 then
  put(KEYS[5], marks)
  each('ZADD', KEYS[6], at)
  each('SREM', KEYS[2], silent)
  for from = 1, #keys, CHUNK do
    redis.call('DEL', unpack(keys, from, math.min(from + CHUNK - 1, #keys)))
  end
  if known[4] then
    unmark(KEYS, {}, silent)
  end
  local times = {}
  for n = 1, #silent do
    times[n] = now
  end
  note_deaths(KEYS[1], now, stale, times)
  drop(KEYS)
  keep(KEYS, known[2], true)
end
unmark(KEYS, {}, found)
return answer
