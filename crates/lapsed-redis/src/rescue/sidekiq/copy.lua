-- Copies what the last heartbeat of some Sidekiq processes showed, because it expires together with their sign of life.
-- KEYS  1 marks of copies (hash: ID → `MARK:UNTIL:STALE`)  2 processes (set)
--       then for each process: ID, ID:workers (up to 6.4), ID:work (from 6.5), its copy and the copy before (hashes: thread →
--       entry), reliable-fetcher-heartbeat-ID
-- ARGV  1 most jobs of a process  2 most bytes of a process  3 `watched`, or `unwatched` if nobody has looked for so long that an
--       orderly end may have been missed
--       then for each process: ID, `exact` if its jobs are on working lists or ``
-- Answers  for each process a letter, and how many jobs were not copied or are given up:
--          a alive, e alive and exact, d ID is gone, o it ended in order, u it ended while nobody looked, w a key of another type
-- O(processes + bytes of those pictures that are new), without a look at their entries
--
-- MARK is the value of `beat` that the copy belongs to; with `+` if the picture is newer than that, because a heartbeat writes the
-- picture first and `beat` in a second transaction. Reading, comparing and writing are one step, so a copy is never older than
-- what it replaces. An entry that is also in the copy before was shown by two heartbeats. UNTIL is when ID expires, in ms.
local now = clock()
local jobs_max, bytes_max, watched = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == 'watched'
local marks, processes = KEYS[1], KEYS[2]

local function drop(id, copy, before)
  redis.call('UNLINK', copy, before)
  redis.call('HDEL', marks, id)
end

local function is_hash(key)
  local kind = redis.call('TYPE', key)['ok']
  return kind == 'hash' or kind == 'none'
end

local function read_mark(id)
  local mark, ends, stale = string.match(redis.call('HGET', marks, id) or '', '^([^:]*):(%d+):([s-])$')
  return mark, ends, stale
end

-- ID is gone: the process is dead, or it has ended in order while nobody looked.
local function gone(id, copy, before, mark, ends, stale)
  if mark and redis.call('EXISTS', copy) == 0 then
    drop(id, copy, before)
    return 'd', 0
  end
  if not mark or watched or stale == 's' then
    return 'd', 0
  end
  if redis.call('SISMEMBER', processes, id) == 1 then
    redis.call('HSET', marks, id, mark .. ':' .. ends .. ':s')
    return 'd', 0
  end
  local jobs = redis.call('HLEN', copy)
  drop(id, copy, before)
  return 'u', jobs
end

-- Copies the picture, and keeps the copy of the heartbeat before. Answers how many jobs are too many or too large for that.
local function take_copy(picture, copy, before, is_same_beat)
  local jobs = redis.call('HLEN', picture)
  if jobs > jobs_max or (redis.call('MEMORY', 'USAGE', picture) or 0) > bytes_max then
    redis.call('UNLINK', copy, before)
    return jobs
  end
  if not is_same_beat and redis.call('EXISTS', copy) == 1 then
    redis.call('RENAME', copy, before)
  end
  redis.call('COPY', picture, copy, 'REPLACE')
  redis.call('PERSIST', copy)
  return 0
end

local function look(id, exact, n)
  local key, copy, before, beats = KEYS[n], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
  for i = n, n + 4 do
    if not is_hash(KEYS[i]) then
      return 'w', 0
    end
  end
  local mark, ends, stale = read_mark(id)
  if exact or redis.call('EXISTS', beats) == 1 then
    if mark then
      drop(id, copy, before)
    end
    return redis.call('EXISTS', key) == 1 and 'e' or 'd', 0
  end
  local beat = redis.call('HGET', key, 'beat')
  if not beat then
    return gone(id, copy, before, mark, ends, stale)
  end
  local picture = redis.call('EXISTS', KEYS[n + 2]) == 1 and KEYS[n + 2] or KEYS[n + 1]
  local has_picture = redis.call('EXISTS', picture) == 1
  if not has_picture and redis.call('SISMEMBER', processes, id) == 0 then
    if mark then
      drop(id, copy, before)
    end
    return 'o', 0
  end
  local left = redis.call('PTTL', key)
  beat = string.gsub(beat, '[:+]', '')
  local torn = has_picture and redis.call('PTTL', picture) > left
  local new = beat .. (torn and '+' or '')
  if new == mark and stale == '-' then
    return 'a', 0
  end
  if not has_picture then
    -- Nothing runs; or the picture is about to expire, just before ID: then the beat is still that of the copy.
    if mark and string.gsub(mark, '%+', '') ~= beat then
      drop(id, copy, before)
    end
    return 'a', 0
  end
  local left_out = take_copy(picture, copy, before, mark and (mark == new or string.sub(mark, -1) == '+'))
  redis.call('HSET', marks, id, new .. ':' .. whole(now + (left > 0 and left or 60000)) .. ':-')
  return 'a', left_out
end

local answer = {}
for n = 1, (#ARGV - 3) / 2 do
  local at = 2 * n + 2
  answer[2 * n - 1], answer[2 * n] = look(ARGV[at], ARGV[at + 1] == 'exact', 6 * n - 3)
end
return answer
