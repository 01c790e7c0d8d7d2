-- Puts jobs on lapsed's own queues, those whose ids are free.
-- KEYS  the ten of jobs, then: 11... the queues
-- ARGV  1 how many of KEYS 11...  then their names, then for each job: id  queue  way  crashes_max
--       payload
-- Answers  one letter a job: q queued, e there already
-- O(jobs)
local K = job_keys(KEYS)
local entered, given = whole(clock()), tonumber(ARGV[1])
local queues, ids, first = {}, {}, 2 + given
for i = 1, given do
  queues[ARGV[1 + i]] = KEYS[10 + i]
end
for at = first, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
end
for _, key in pairs(queues) do
  local takes, why = queue_takes('own', key)
  if not takes then
    return redis.error_reply(why)
  end
end
local no_way = may_write({ { 'HSET', K.jobs, 'x', 'x' }, { 'HINCRBY', K.meta, 'x', '1' }, { 'ZADD', K.queues, '0', 'x' } })
if no_way then
  return no_way
end
must_be({ K.meta }, { K.queues })
local known, letters, puts, records, fresh = every('HMGET', K.jobs, ids), {}, {}, {}, 0
local seen = {}
for i, id in ipairs(ids) do
  if known[i] or seen[id] then
    letters[i] = 'e'
  else
    local at = first + 5 * (i - 1)
    letters[i], seen[id], fresh = 'q', true, fresh + 1
    add_put(puts, ARGV[at + 1], false, id,
      pack_tail(entered, ARGV[at + 3], ARGV[at + 2], '', ARGV[at + 1], ARGV[at + 4]))
  end
end
if fresh > 0 then
  redis.call('HINCRBY', K.meta, 'entered', fresh)
  for _, put in ipairs(puts) do
    put_jobs(K, 'own', queues[put.name], put.name, put.ids, put.tails, false, records)
  end
  each('HSET', K.jobs, records)
end
return table.concat(letters)
