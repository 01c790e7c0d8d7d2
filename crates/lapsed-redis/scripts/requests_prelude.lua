-- Requests that were carried out, for scripts that may be called again because their answer was lost.
--
-- One hash: a request's key, and `at:fingerprint<newline>what its script keeps`. Under `!attempt` is an
-- attempt that was given up: it must not be carried out any more. Beside it a sorted set by time.

-- As `REQUESTS_MAX` and `REQUEST_AGE_MS` in `lapsed_core::request`.
local REQUESTS_MAX = 100000
local REQUEST_AGE_MS = 600000

-- What was kept for a request; or nil, and `reused` if its key came before with another fingerprint.
local function find_request(requests, key, fingerprint, now)
  local kept = redis.call('HGET', requests, key)
  if not kept then
    return nil
  end
  local at, before, from = string.match(kept, '^(%d+):(%w*)\n()')
  if now - tonumber(at) >= REQUEST_AGE_MS then
    return nil
  elseif before ~= fingerprint then
    return nil, 'reused'
  end
  return string.sub(kept, from)
end

local function drop_request(requests, requests_at, key)
  redis.call('HDEL', requests, key)
  redis.call('ZREM', requests_at, key)
end

-- Keeps a request, and forgets up to four that are too old or too many.
local function keep_request(requests, requests_at, key, fingerprint, now, what)
  redis.call('HSET', requests, key, whole(now) .. ':' .. fingerprint .. '\n' .. what)
  redis.call('ZADD', requests_at, whole(now), key)
  local old = redis.call('ZRANGEBYSCORE', requests_at, '-inf', whole(now - REQUEST_AGE_MS), 'LIMIT', 0, 4)
  local over = redis.call('ZCARD', requests_at) - REQUESTS_MAX
  if #old == 0 and over > 0 then
    old = redis.call('ZRANGE', requests_at, 0, math.min(over, 4) - 1)
  end
  if #old > 0 then
    redis.call('HDEL', requests, unpack(old))
    redis.call('ZREM', requests_at, unpack(old))
  end
end

-- Whether the caller may keep requests: nil, or the error. Raises the server's own error if a key is of
-- another type.
local function may_keep(requests, requests_at)
  must_be({ requests }, { requests_at })
  return may_write({ { 'HSET', requests, 'x', 'x' }, { 'HDEL', requests, 'x' }, { 'ZADD', requests_at, '0', 'x' },
    { 'ZREM', requests_at, 'x' } })
end

-- What is kept of a take: the incarnation, the attempts that were answered (a list with commas), then for
-- each of its calls a line `=popped` and a line `token id` a job.
local function read_take(kept)
  local inc, attempts, from = string.match(kept, '^(%d+)\n([^\n]*)\n()')
  local parts = {}
  for line in string.gmatch(string.sub(kept, from), '[^\n]+') do
    local popped = string.match(line, '^=(%d+)$')
    if popped then
      parts[#parts + 1] = { popped = popped, tokens = {}, ids = {} }
    else
      local part = parts[#parts]
      part.tokens[#part.tokens + 1], part.ids[#part.ids + 1] = string.match(line, '^(%d+) (.*)$')
    end
  end
  return { inc = inc, attempts = attempts, parts = parts, jobs = string.sub(kept, from) }
end

local function pack_take(take)
  return take.inc .. '\n' .. take.attempts .. '\n' .. take.jobs
end

local function has_attempt(take, attempt)
  return string.find(',' .. take.attempts .. ',', ',' .. attempt .. ',', 1, true) ~= nil
end

-- Words with which a script answers that it changed nothing.
local function is_refusal(answer)
  local word = type(answer) == 'table' and (answer.err and 'err' or answer[1])
  return word == 'err' or word == 'again' or word == 'unknown' or word == 'stranger' or word == 'ended'
    or word == 'missing' or word == 'lives' or word == 'queues' or word == 'active'
end

-- Carries out `work` and keeps its answer, unless `refuses(answer)`; or answers what was kept. nil and
-- `reused` if the key came before with another fingerprint.
local function once(requests, requests_at, key, fingerprint, refuses, work)
  local now = clock()
  local kept, reused = find_request(requests, key, fingerprint, now)
  if kept then
    return cmsgpack.unpack(kept)
  elseif reused then
    return nil, reused
  end
  local no_way = may_keep(requests, requests_at)
  if no_way then
    return no_way
  end
  local answer = work()
  if not refuses(answer) then
    keep_request(requests, requests_at, key, fingerprint, now, cmsgpack.pack(answer))
  end
  return answer
end
