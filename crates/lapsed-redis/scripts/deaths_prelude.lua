-- What the scripts that count deaths for the brake begin with, after `prelude.lua`. No keys of its own: callers pass theirs.
--
-- What was taken from the dead, for the brake of systems whose keys show no owners, and for that of a mirror, whose
-- script counts whom it decides to be silent, by the time of that: field `deaths` of the meta
-- hash, `time:count` for each 64th of `span` in which something became due. It is counted by when it became due and not
-- by when it was taken, so that a backlog of long ago is no mass death. Older ones are left out whenever it is
-- written, and what lies in the future was noted by a clock that has been set back since: at most 66 counts.
local function width_of(span)
  return math.max(1, math.ceil(span / 64))
end

local function deaths_of(meta, now, span)
  local counts = {}
  for at, count in string.gmatch(redis.call('HGET', meta, 'deaths') or '', '(%d+):(%d+)') do
    at = tonumber(at)
    if at <= now and at + width_of(span) > now - span then
      counts[at] = (counts[at] or 0) + tonumber(count)
    end
  end
  return counts
end

local function note_deaths(meta, now, span, deadlines)
  local counts, width, text = deaths_of(meta, now, span), width_of(span), {}
  for _, deadline in ipairs(deadlines) do
    local at = deadline - deadline % width
    if at + width > now - span then
      counts[at] = (counts[at] or 0) + 1
    end
  end
  for at, count in pairs(counts) do
    text[#text + 1] = whole(at) .. ':' .. whole(count)
  end
  redis.call('HSET', meta, 'deaths', table.concat(text, ','))
end

-- How many of these became due within the last `part` of `span`.
local function deaths_within(meta, now, span, part)
  local sum = 0
  for at, count in pairs(deaths_of(meta, now, span)) do
    if at + width_of(span) > now - part then
      sum = sum + count
    end
  end
  return sum
end
