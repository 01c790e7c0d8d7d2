-- The decisive step: guard, act and receipt.
-- KEYS  the base keys, then: 12 the registry's hash, then for each group three:
--       what the incarnation holds, what was taken from it, its heartbeat (KEYS 1 again: none);
--       of incarnation 0: the record of observed owners, the same again if this batch takes the last that the
--       owner is known to hold (KEYS 1: it does not), its heartbeat
-- ARGV  1 sweeper  2 number of the batch  3 term, or empty  4 `reclaim` or `dry`  5 seen_ms  6 gap_ms
--       7 threshold_ms (for what the application writes)  8 shards  9 this shard
--       10 how many groups, then for each:
--       incarnation (0: keys that the application writes itself, judged by its heartbeat key alone)
--       owner  deadline_ms (for 0 only: since when the caller has missed the heartbeat)  how many keys  the keys, none of them twice
-- Answers  {now_ms, held_us, owners ended, first receipt, step, [deadline_ms, how, codes] a group}
--          codes: one letter a key: R reclaimed, A alive, N newcomer, S store away, M moved, G gone, L not the leader, D done before
-- O(keys * log held)
--
-- Nothing can come in between, because it is one script. All reads come before the first write, and
-- the first write is the receipt: what could fail (a wrong type, no permission, no memory) fails
-- before anything has changed.
local K = base(KEYS)
local now, began = clock()
local sweeper, number, term, act = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'reclaim'
local threshold, shards, shard = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local registry = KEYS[12]
local back = presence(K.meta, now, tonumber(ARGV[5]), tonumber(ARGV[6]), act)
if not back then
  return redis.error_reply('READONLY this server is a replica')
end
local no = act and refused(K.meta, K.batches, sweeper, number, term, now) or nil
if act then
  local no_way = may_write({ { 'HDEL', registry, 'x' }, { 'ZREM', K.due, 'x' }, { 'ZADD', K.due, '0', 'x' },
    { 'HSET', K.lives, 'x', 'x' }, { 'ZADD', K.deaths, '0', 'x' }, { 'HINCRBY', K.meta, 'x', '1' }, { 'HDEL', K.meta, 'x' },
    { 'XADD', K.receipts, '1-0', 'x', 'x' } })
  if no_way then
    return no_way
  end
  redis.call('XLEN', K.receipts)
  must_be({ K.counts, K.lives, registry }, { K.batches_at, K.due, K.ended, K.deaths, K.past })
end

local groups, at, reclaimed = {}, 11, 0
for g = 1, tonumber(ARGV[10]) do
  local inc, owner, hint, size = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local held, lost, heartbeat = KEYS[10 + 3 * g], KEYS[11 + 3 * g], KEYS[12 + 3 * g]
  local group = { inc = inc, owner = owner, held = held, lost = lost, dead = {}, stale = {} }
  local keys = {}
  for i = 1, size do
    keys[i] = ARGV[at + 3 + i]
  end
  at = at + 4 + size
  -- The incarnation.
  local verdict, incarnation = no, nil
  if not no and inc == '0' then
    -- Dead is whose heartbeat was seen and is gone, or who had none for a whole TTL since it was first seen.
    local first, good = read_observed(redis.call('HGET', held, owner))
    group.deadline, group.how = tonumber(hint), 'd'
    if redis.call('EXISTS', heartbeat) == 1 then
      verdict = 'A'
    elseif now < back + threshold then
      verdict = 'S'
    elseif good > 0 then
      group.deadline = math.min(good, now, group.deadline)
    elseif not first or now < first + threshold then
      verdict = 'N'
    else
      group.deadline = first + threshold
    end
    -- What this name registers after its last entry was taken belongs to an owner that has just started.
    group.forget = not verdict and lost ~= KEYS[1]
  elseif not no then
    incarnation = read_incarnation(redis.call('HGET', K.lives, inc))
    must_be({}, { held, lost })
    -- Of an owner that sends heartbeats without lapsed only the heartbeat is known, also after it was declared
    -- dead: there is no second incarnation to distinguish, unless one was started since.
    local good = nil
    if incarnation and incarnation.external and heartbeat ~= KEYS[1]
      and (incarnation.ending == '-' or incarnation.ending == 'd' and newest(redis.call('HGET', K.names, owner)) == inc) then
      good = good_until(now, redis.call('PTTL', heartbeat), incarnation.ttl)
    end
    if not incarnation then
      verdict = 'G'
    elseif good then
      group.deadline, group.refile, verdict = good, true, 'A'
    elseif incarnation.ending ~= '-' then
      group.deadline, group.how = incarnation.deadline, incarnation.ending
    else
      group.deadline = tonumber(redis.call('ZSCORE', K.due, inc) or 0)
      if now < group.deadline then
        verdict = 'A'
      elseif now < due_at(group.deadline, incarnation.started, incarnation.ttl, back) then
        verdict = 'S'
      else
        group.how, group.ends = 'd', true
      end
    end
  end
  group.incarnation = incarnation
  -- What it holds.
  if verdict then
    group.codes = string.rep(verdict, size)
  else
    local holders = every('HMGET', registry, keys)
    -- An owner with one incarnation holds by it whatever is its own; of several, each is asked.
    local alone = inc == '0' or redis.call('HGET', K.names, owner) == inc
    local filed = alone and holders or every('ZMSCORE', held, keys)
    local all = true
    for i = 1, size do
      all = all and holders[i] == owner and filed[i]
    end
    if all then
      group.dead, group.codes = keys, string.rep('R', size)
    else
      local codes = {}
      for i = 1, size do
        if holders[i] == owner and filed[i] then
          codes[i] = 'R'
          group.dead[#group.dead + 1] = keys[i]
        else
          codes[i] = holders[i] and 'M' or 'G'
          if inc ~= '0' and filed[i] then
            group.stale[#group.stale + 1] = keys[i]
          end
        end
      end
      group.codes = table.concat(codes)
    end
    reclaimed = reclaimed + #group.dead
  end
  groups[g] = group
end

local ended, first, step = 0, 0, 1
if act and not no then
  if reclaimed > 0 then
    first, step = receipt_numbers(K.meta, reclaimed, now, shards, shard)
    local seq = first
    for _, group in ipairs(groups) do
      if #group.dead > 0 then
        local last = seq + (#group.dead - 1) * step
        redis.call('XADD', K.receipts, whole(last) .. '-0', 'o', group.owner, 'i', group.inc,
          'd', whole(group.deadline), 'r', group.how, 't', whole(now), 's', sweeper, 'b', number, 'p', step,
          'n', #group.dead, 'v', cmsgpack.pack(group.dead))
        seq = last + step
      end
    end
    redis.call('HINCRBY', K.meta, 'receipts', reclaimed)
  end
  for _, group in ipairs(groups) do
    if group.ends then
      finish(K, group.inc, group.incarnation, 'd', now, group.deadline)
      ended = ended + 1
    elseif group.refile then
      revive(K, group.inc, group.incarnation, group.deadline)
    end
    if #group.dead > 0 then
      each('HDEL', registry, group.dead)
    end
    if group.inc == '0' and #group.dead > 0 then
      redis.call('ZADD', K.deaths, whole(now), group.owner)
    end
    if group.forget then
      redis.call('HDEL', group.held, group.owner)
    end
    if group.inc ~= '0' and #group.dead + #group.stale > 0 then
      local gone = 0
      for _, keys in ipairs({ group.dead, group.stale }) do
        if #keys > 0 then
          gone = gone + each('ZREM', group.held, keys)
        end
      end
      local left = redis.call('HINCRBY', K.counts, group.inc, 0 - gone)
      if left <= 0 then
        redis.call('ZREM', K.ended, group.inc)
      end
      local room = 1000 - redis.call('ZCARD', group.lost)
      local members = {}
      for i = 1, math.min(room, #group.dead) do
        members[2 * i - 1], members[2 * i] = '0', group.dead[i]
      end
      if #members > 0 then
        each('ZADD', group.lost, members)
      end
    end
  end
  if reclaimed > 0 then
    note_batch(K, sweeper, number, first, first + (reclaimed - 1) * step, now)
  end
end

local _, done = clock()
local answer = { whole(now), whole(done - began), ended, whole(first), step }
for _, group in ipairs(groups) do
  answer[#answer + 1] = whole(group.deadline or 0)
  answer[#answer + 1] = group.how or ''
  answer[#answer + 1] = group.codes
end
return answer
