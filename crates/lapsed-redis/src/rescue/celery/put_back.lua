-- Celery 5 over kombu's Redis transport: a message that was delivered is a field of the hash `unacked`, and a member of the
-- sorted set `unacked_index`, whose score is the time of the delivery. Neither says which worker holds it. That no living
-- worker claims it was asked before, in two rounds in which all that listen have answered; no script can ask.
-- KEYS of a suspect   1 unacked (hash)  2 unacked_index (sorted set)  3 the list of its queue and priority (list)
--                     4 dead letters, a key of lapsed's own (list)
-- Words of a suspect  1 delivery tag  2 its value in `unacked` as it was read  3 its score before the first round, or empty
--                     4 the message for the queue  5 until when its worker was known to live, in milliseconds
--                     6 since when it may be put back, in milliseconds
-- O(log messages + length of the message) for each suspect
--
-- Who can come in between the second round and this script:
-- - The worker's acknowledgement removes hash field and score. No worker that lives claims the message, so this is one that was
--   frozen or cut off: it is found gone here, or comes too late and finds nothing, because the message has a new tag.
-- - kombu's own recovery (`restore_visible`, after `visibility_timeout`) or another process of lapsed moves the message. kombu keeps the
--   tag; when a worker takes the message again, its score is the new time. So tag, value and score must all be as they
--   were before the first round.
-- - A living worker cannot come to hold this delivery: a delivery begins with a new score.
-- kombu moves a message in a transaction that watches `unacked`, so that this script comes before it or after it, never within.
local TYPES = { 'hash', 'zset', 'list', 'list' }
local WRITES = { { 'HDEL', 1, 'x' }, { 'ZREM', 2, 'x' }, { 'RPUSH', 3, 'x' }, { 'LPUSH', 3, 'x' }, { 'LPUSH', 4, 'x' } }

local function judge(s, at)
  local score = redis.call('ZSCORE', s.keys[2], s.words[1])
  local is_same = (s.words[3] == '' and not score) or (score and tonumber(score) == tonumber(s.words[3]))
  if not is_same or redis.call('HGET', s.keys[1], s.words[1]) ~= s.words[2] then
    return 'G'
  end
  -- A dry run says what a daemon will find when it has waited.
  if at.act and at.now < tonumber(s.words[6]) then
    return 'A'
  end
  s.deadline = tonumber(s.words[5])
  s.payload = s.words[2]
  return nil
end

local function take_out(s)
  gather('HDEL', s.keys[1], s.words[1])
  gather('ZREM', s.keys[2], s.words[1])
end

-- As `_do_restore_message`; the tail is what a worker takes next.
local function put_back(s, _, front)
  take_out(s)
  gather(front and 'RPUSH' or 'LPUSH', s.keys[3], s.words[4])
end

-- Celery keeps no dead letters.
local function bury(s)
  take_out(s)
  redis.call('LPUSH', s.keys[4], s.words[4])
end

local function discard(s)
  take_out(s)
end

-- Nothing points to a message but its score, which kombu removes itself.
local function after() end

-- Nothing says when the worker came.
local function came_after()
  return false
end
