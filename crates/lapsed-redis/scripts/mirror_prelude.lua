-- What the scripts of a mirror begin with, after prelude.lua. Every one of them has as its first keys
-- 1 meta  2 online  3 deactivated  4 versions; most have all: 5 doomed  6 doomed_at  7 missing  8 snapshot.
--
-- meta has of the mirror: `seeded` the incarnation in which it was seeded; `kept` which of the keys 2 to 4 were
-- there after the last change; `losses` how often one of them was found gone; `base` the incarnation that the
-- versions are of; `seeding:ATTEMPT` the incarnation in which that attempt began; `missed` whether any beat is
-- missing; `turn` who makes the next snapshot, and until when; `batched` when lapsed last wrote the beats of many
-- at once, newest first; `mass` when another client did, how many of how many were found then; `masses` how
-- often that was found.

local DAY = 86400000

-- The server stores a hash of short values as a list and searches each field from the start, so that hundreds of
-- them would take milliseconds. One long value turns it into a table; no provider has an empty name.
local FILLER = string.rep('=', 65)

local function put(key, list)
  redis.call('HSET', key, '', FILLER)
  each('HSET', key, list)
end

-- The time as `2026-05-25T10:00:00.123Z`.
local function iso(ms)
  local floor = math.floor
  local days = floor(ms / DAY)
  local rest = ms - days * DAY
  local era = floor((days + 719468) / 146097)
  local of_era = days + 719468 - era * 146097
  local years = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * years + floor(years / 4) - floor(years / 100))
  local march = floor((5 * of_year + 2) / 153)
  local day = of_year - floor((153 * march + 2) / 5) + 1
  local month = march < 10 and march + 3 or march - 9
  local year = years + era * 400 + (month <= 2 and 1 or 0)
  local s = floor(rest / 1000)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day, floor(s / 3600),
    floor(s / 60) % 60, s % 60, rest % 1000)
end

-- The milliseconds at which a date began; nil if there is no such date.
local function midnight(date)
  local y, m, d = string.match(date, '^(%d%d%d%d)%-(%d%d)%-(%d%d)$')
  if not y then
    return nil
  end
  y, m, d = tonumber(y), tonumber(m), tonumber(d)
  if m < 1 or m > 12 or d < 1 or d > 31 then
    return nil
  end
  local floor = math.floor
  local year = m <= 2 and y - 1 or y
  local era = floor(year / 400)
  local years = year - era * 400
  local of_year = floor((153 * (m > 2 and m - 3 or m + 9) + 2) / 5) + d - 1
  local of_era = years * 365 + floor(years / 4) - floor(years / 100) + of_year
  local ms = (era * 146097 + of_era - 719468) * DAY
  -- The 31st of a month of 30 days comes out as the first of the next.
  return string.sub(iso(ms), 1, 10) == date and ms or nil
end

-- The same, remembered: most beats are of one day.
local function began(date, dates)
  local ms = dates[date]
  if ms == nil then
    ms = midnight(date) or false
    dates[date] = ms
  end
  return ms
end

-- The milliseconds of an ISO 8601 time with a zone, in any of its forms; nil if it cannot be read.
local function any_time_of(text, dates)
  local date, h, m, s, rest = string.match(text, '^(%d%d%d%d%-%d%d%-%d%d)[T ](%d%d):(%d%d):(%d%d)(.*)$')
  if not date then
    return nil
  end
  local ms = began(date, dates)
  h, m, s = tonumber(h), tonumber(m), tonumber(s)
  if not ms or h > 23 or m > 59 or s > 60 then
    return nil
  end
  ms = ms + h * 3600000 + m * 60000 + s * 1000
  local fraction, zone = string.match(rest, '^%.(%d+)(.+)$')
  if fraction then
    ms = ms + math.floor(tonumber('0.' .. fraction) * 1000 + 0.0001)
  else
    zone = rest
  end
  if zone == 'Z' then
    return ms
  end
  local sign, zh, zm = string.match(zone, '^([+-])(%d%d):?(%d%d)$')
  if not sign then
    return nil
  end
  local offset = tonumber(zh) * 3600000 + tonumber(zm) * 60000
  return sign == '+' and ms - offset or ms + offset
end

-- The same, quickly for the form that `iso` writes.
local function time_of(text, dates)
  if #text ~= 24 or not string.find(text, '^%d%d%d%d%-%d%d%-%d%dT[0-2]%d:[0-5]%d:[0-5]%d%.%d%d%dZ$') then
    return any_time_of(text, dates)
  end
  local a, b, _, c, d, _, e, f, _, g, h, i = string.byte(text, 12, 23)
  local ms, hours = began(string.sub(text, 1, 10), dates), a * 10 + b - 528
  if not ms or hours > 23 then
    return nil
  end
  return ms + hours * 3600000 + (c * 10 + d - 528) * 60000 + (e * 10 + f - 528) * 1000 + g * 100 + h * 10 + i - 5328
end

-- Answers whether a time as text is later than `latest`, not beyond a day before `now`. Most are written as `iso`
-- writes them, and such texts are in the order of their times: only the others, and those of another day, are
-- read.
local function fresher(latest, now)
  local from, to, day = iso(latest), iso(now), string.sub(iso(now), 1, 11)
  local find = string.find
  return function(text, dates)
    if text >= day and text <= to and find(text, '^[0-2]%d:[0-5]%d:[0-5]%d%.%d%d%dZ$', 12) then
      return text > from
    end
    return (time_of(text, dates) or 0) > latest
  end
end

-- How many of these keys there are.
local function existing(keys)
  local sum = 0
  for from = 1, #keys, CHUNK do
    sum = sum + redis.call('EXISTS', unpack(keys, from, math.min(from + CHUNK - 1, #keys)))
  end
  return sum
end

-- The texts of these keys; false for one that is not there, or of another type.
local function texts_of(keys)
  if #keys > 0 and #keys <= CHUNK then
    return redis.call('MGET', unpack(keys))
  end
  local all = {}
  for from = 1, #keys, CHUNK do
    local part = redis.call('MGET', unpack(keys, from, math.min(from + CHUNK - 1, #keys)))
    for i = 1, #part do
      all[#all + 1] = part[i]
    end
  end
  return all
end

-- The keys of these names.
local function keys_of(before, ids, after)
  local keys = {}
  for i = 1, #ids do
    keys[i] = before .. ids[i] .. after
  end
  return keys
end

-- Of keys without a text, those that are of another type: MGET is silent about them.
local function misfits(keys, texts)
  local absent = {}
  for i = 1, #keys do
    if not texts[i] then
      absent[#absent + 1] = keys[i]
    end
  end
  local found = {}
  if existing(absent) > 0 then
    for i = 1, #keys do
      found[i] = not texts[i] and redis.call('EXISTS', keys[i]) == 1
    end
  end
  return found
end

-- The last beats of these providers: a time, never beyond now; false: none; 'u': one that cannot be read.
local function beats_of(before, ids, after, now)
  local keys = keys_of(before, ids, after)
  local texts, dates, beats = texts_of(keys), {}, {}
  local odd = misfits(keys, texts)
  for i = 1, #ids do
    if texts[i] then
      local ms = time_of(texts[i], dates)
      beats[i] = ms and math.min(ms, now) or 'u'
    else
      beats[i] = odd[i] and 'u' or false
    end
  end
  return beats
end

-- Which run of the server and of its data this is. Another one than was seeded knows nothing, whatever
-- its file or its master has left in it.
local function life_of(losses)
  local info = redis.call('INFO', 'server')
  local _, at = string.find(info, 'run_id:', 1, true)
  return string.sub(info, at + 1, at + 40) .. ':' .. (losses or '0')
end

-- Whether the keys are there that were there after the last change: if not, the server dropped them.
local function intact(KEYS, kept)
  local keys = {}
  for letter in string.gmatch(kept or '', '%d') do
    keys[#keys + 1] = KEYS[tonumber(letter)]
  end
  return #keys == 0 or redis.call('EXISTS', unpack(keys)) == #keys
end

-- Whether it was seeded in this run of the server and has lost nothing since; `known` are the fields of meta `seeded`,
-- `kept` and `losses`.
local function is_seeded(KEYS, known)
  return known[1] and known[1] == life_of(known[3]) and intact(KEYS, known[2])
end

-- After a change: remembers which keys are there. `whole_before`: whether all were there before it; if not,
-- whatever was seeded, or is being seeded, is void.
local function keep(KEYS, kept, whole_before)
  local now = ''
  for k = 2, 4 do
    if redis.call('EXISTS', KEYS[k]) == 1 then
      now = now .. k
    end
  end
  if not whole_before then
    redis.call('HINCRBY', KEYS[1], 'losses', 1)
  end
  if now ~= (kept or '') then
    redis.call('HSET', KEYS[1], 'kept', now)
  end
end

-- A page of a set's members, and the cursor of the next (`0`: that was all). A set that fits into one page is
-- read whole, each member once; else each member comes at least once, also while the set grows.
local function members(set, cursor, limit)
  if cursor == '0' and redis.call('SCARD', set) <= tonumber(limit) then
    return '0', redis.call('SMEMBERS', set)
  end
  local found = redis.call('SSCAN', set, cursor, 'COUNT', limit)
  return found[1], found[2]
end

-- Version and epoch of a provider; nil and 0 if it has none. As text: numbers in Lua are exact only up to 2^53.
local function version_of(packed)
  local version, epoch = string.match(packed or '', '^(%d+):(%d+)$')
  return version, epoch or '0'
end

-- Whether the first of two numbers without leading zeros is the smaller one.
local function is_below(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

-- Cancels pending offline decisions of these providers, and forgets which of them were found without a heartbeat.
local function unmark(KEYS, cancelled, found)
  if #cancelled > 0 then
    each('HDEL', KEYS[5], cancelled)
    each('ZREM', KEYS[6], cancelled)
  end
  if #found > 0 then
    each('HDEL', KEYS[7], found)
  end
end

-- Drops the snapshot, and voids the turn of the process that is making the next one.
local function drop(KEYS)
  redis.call('DEL', KEYS[8])
  redis.call('HDEL', KEYS[1], 'turn')
end

-- Whether the user may make all changes of a provider, because a script is not rolled back.
local function may_change(KEYS, heartbeat, capacity)
  return may_write({ { 'HSET', KEYS[4], 'x', 'x' }, { 'HDEL', KEYS[5], 'x' }, { 'ZREM', KEYS[6], 'x' },
    { 'SADD', KEYS[2], 'x' }, { 'SREM', KEYS[2], 'x' }, { 'SADD', KEYS[3], 'x' }, { 'SREM', KEYS[3], 'x' },
    { 'MSET', heartbeat, 'x' }, { 'MSET', capacity, 'x' }, { 'DEL', heartbeat }, { 'DEL', KEYS[8] },
    { 'HINCRBY', KEYS[1], 'x', '1' }, { 'SET', KEYS[8], 'x' } })
end

-- Looks at the types of the own keys, so that nothing fails in the middle.
local function must_be_own(KEYS)
  must_be({ KEYS[1], KEYS[4], KEYS[5], KEYS[7] }, { KEYS[6] })
end

-- Remembers a time at which lapsed itself wrote the beats of many, so that `mirror_beats` knows whose they are.
local function note_batched(meta, known, at, beats)
  if beats < 5 then
    return
  end
  local times = { whole(at) }
  for time in string.gmatch(known or '', '%d+') do
    times[#times + 1] = #times < 16 and time or nil
  end
  redis.call('HSET', meta, 'batched', table.concat(times, ','))
end
