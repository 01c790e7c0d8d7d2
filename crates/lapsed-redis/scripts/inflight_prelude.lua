-- What the scripts of `inflight` have after the prelude and that of the queues.
--
-- One job is one text: where it is, then what stays the same wherever it is.
--   queued       q:
--   in flight    f:token:incarnation:since:
--   dead letter  d<why>:at:bytes of the error:error      (why: f failed, c crashes, o too old, a asked)
-- and then, its tail,
--   entered:crashes_max:way:crash,crash,...:queue<newline>payload
-- with `way` what becomes of it when its worker dies (f front, b back, x fail, r drop, l dead
-- letter; empty, like crashes_max: as its system does) and the crashes as milliseconds. A name has no
-- newline in it; what comes after that is the payload, byte for byte.

-- The keys that its hot scripts share, in this order; the last is Sidekiq's set of queues (the first
-- key again: none).
local function job_keys(KEYS)
  return { meta = KEYS[1], lives = KEYS[2], names = KEYS[3], counts = KEYS[4], jobs = KEYS[5], dead = KEYS[6],
    queues = KEYS[7], crashes = KEYS[8], crashes_at = KEYS[9], set = KEYS[10] }
end

local function pack_tail(entered, crashes_max, way, crashes, queue, payload)
  return entered .. ':' .. crashes_max .. ':' .. way .. ':' .. crashes .. ':' .. queue .. '\n' .. payload
end

-- entered, crashes_max, way, crashes, queue, and where the payload begins.
local function read_tail(tail)
  return string.match(tail, '^(%d+):(%d*):(%a?):([%d,]*):([^\n]*)\n()')
end

local function payload_of(tail)
  return string.sub(tail, string.find(tail, '\n', 1, true) + 1)
end

-- The tail of a job, whatever its head.
local function tail_of(record)
  local head = string.byte(record)
  if head == 113 then
    return string.sub(record, 3)
  elseif head == 102 then
    return string.sub(record, string.match(record, '^f:%d+:%d+:%d+:()'))
  end
  local size, at = string.match(record, '^d%a:%d+:(%d+):()')
  return string.sub(record, at + tonumber(size))
end

local function pack_dead(why, at, error, tail)
  return 'd' .. why .. ':' .. whole(at) .. ':' .. #error .. ':' .. error .. tail
end

-- New tokens: to write down a large number costs more than all else that is done with a job. So those of one
-- batch begin alike (numbers that would begin otherwise are passed over), and their ends are written
-- here.
local TOKENS = 10000
local function ends()
  return {
    '00', '01', '02', '03', '04', '05', '06', '07', '08', '09', '10', '11', '12', '13', '14', '15', '16', '17',
    '18', '19', '20', '21', '22', '23', '24', '25', '26', '27', '28', '29', '30', '31', '32', '33', '34', '35',
    '36', '37', '38', '39', '40', '41', '42', '43', '44', '45', '46', '47', '48', '49', '50', '51', '52', '53',
    '54', '55', '56', '57', '58', '59', '60', '61', '62', '63', '64', '65', '66', '67', '68', '69', '70', '71',
    '72', '73', '74', '75', '76', '77', '78', '79', '80', '81', '82', '83', '84', '85', '86', '87', '88', '89',
    '90', '91', '92', '93', '94', '95', '96', '97', '98', '99'
  }
end

-- `count` new ones, TOKENS at the most: what they begin with, the first, and its last four digits.
local function new_tokens(meta, count)
  local first = numbers(meta, 'token', count) + 1
  if first % TOKENS + count > TOKENS then
    first = (math.floor(numbers(meta, 'token', TOKENS + count) / TOKENS) + 1) * TOKENS
  end
  return whole(math.floor(first / TOKENS)), first, first % TOKENS
end

-- The incarnation that a caller claims to be: its number, or nil and the answer to give.
local function claimed_life(K, owner, inc)
  if inc == '' then
    inc = newest(redis.call('HGET', K.names, owner))
    if not inc then
      return nil, { 'unknown' }
    end
  end
  local packed = redis.call('HGET', K.lives, inc)
  local ending, name = string.match(packed or '', '^%d+:%d+:([-dr]):%d+:%d+:%d+:[01]:(.*)$')
  if name ~= owner then
    return nil, { 'stranger' }
  end
  if ending ~= '-' then
    return nil, { 'ended', inc }
  end
  return inc
end

-- Which crashes still count, oldest first. No more than a thousand are kept.
local function counting(crashes, window, now)
  local kept = {}
  for at in string.gmatch(crashes, '%d+') do
    if now - tonumber(at) < window then
      kept[#kept + 1] = at
    end
  end
  while #kept >= 1000 do
    table.remove(kept, 1)
  end
  return kept
end

-- What becomes of a job: `p` put back (and whether to the front, and whether on the queue that the rule moves jobs to),
-- `d` dead letter and why, `x` dropped. The same rule as `rules::decide`.
local function decide(rule, way, crashes_max, crashed, crashes, late)
  way = way ~= '' and way or rule.way
  local front = way ~= 'b'
  if not crashed then
    return 'p', front
  elseif way == 'r' then
    return 'x'
  elseif way == 'x' then
    return 'd', 'f'
  elseif way == 'l' then
    return 'd', 'a'
  elseif rule.age_max > 0 and late > rule.age_max then
    return 'd', 'o'
  end
  local most = crashes_max ~= '' and tonumber(crashes_max) or rule.crashes_max
  if most > 0 and crashes >= most then
    return 'd', 'c'
  end
  return 'p', front and way ~= 'm', way == 'm'
end

-- On a queue that is the application's a job keeps no record while it waits there. Its crashes are
-- kept by what it carries, because that comes back unchanged.
local function crash_key(payload)
  return redis.sha1hex(payload)
end

-- The crashes of some payloads; without a look at them while nothing has crashed.
local function crashes_of(K, payloads)
  if #payloads == 0 or redis.call('HLEN', K.crashes) == 0 then
    return {}
  end
  local keys = {}
  for i, payload in ipairs(payloads) do
    keys[i] = crash_key(payload)
  end
  return every('HMGET', K.crashes, keys)
end

-- Puts jobs on one queue. Of lapsed's own queue: their records say so, and their ids go there. Of
-- another: what they carry goes there, and the record is gone. `records` is what HSET is to be given.
local function put_jobs(K, format, key, name, ids, tails, front, records)
  local what = ids
  if format == 'own' then
    for i, id in ipairs(ids) do
      records[#records + 1] = id
      records[#records + 1] = 'q:' .. tails[i]
    end
    redis.call('ZADD', K.queues, '0', name)
  else
    what = {}
    for i, tail in ipairs(tails) do
      what[i] = payload_of(tail)
    end
    each('HDEL', K.jobs, ids)
    redis.call('HINCRBY', K.meta, 'returned', #ids)
  end
  queue_put(format, key, K.set, name, what, front)
end

-- What jobs go back to: lists by queue and end, in the order in which they were added.
local function add_put(puts, name, front, id, tail)
  local place = (front and 'f' or 'b') .. name
  local put = puts[place]
  if not put then
    put = { name = name, front = front, ids = {}, tails = {} }
    puts[place] = put
    puts[#puts + 1] = put
  end
  put.ids[#put.ids + 1] = id
  put.tails[#put.tails + 1] = tail
end

-- A member of a sorted set a name, all scores 0.
local function members(names)
  local flat = {}
  for i, name in ipairs(names) do
    flat[2 * i - 1], flat[2 * i] = '0', name
  end
  return flat
end
