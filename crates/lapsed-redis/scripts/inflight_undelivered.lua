-- Gives up one attempt of a take: the jobs go back to the front of their queues, unless another attempt
-- of the same request was answered with them. An attempt that comes later than this is refused.
-- KEYS  the ten of jobs, then: 11 requests  12 requests_at  13 what the incarnation holds, then some queues
-- ARGV  1 key  2 attempt  3 fingerprint  4 format  5 outbox, or empty  6 the incarnation of KEYS 13
--       7 how many queues, then their names
-- Answers  {'again', incarnation} | {'queues', queue...}: nothing was done; call once more with these
--          how many jobs were given back
-- O(jobs * log held)
local K = job_keys(KEYS)
local requests, requests_at, key, attempt = KEYS[11], KEYS[12], ARGV[1], ARGV[2]
local now = clock()
local no_way = may_keep(requests, requests_at)
if no_way then
  return no_way
end
local kept = find_request(requests, key, ARGV[3], now)
local take = kept and read_take(kept)
local mine = take and has_attempt(take, attempt)
local given_back = 0
if mine and take.attempts ~= attempt then
  local others = {}
  for other in string.gmatch(take.attempts, '[^,]+') do
    if other ~= attempt then
      others[#others + 1] = other
    end
  end
  take.attempts = table.concat(others, ',')
  keep_request(requests, requests_at, key, ARGV[3], now, pack_take(take))
elseif mine then
  if ARGV[6] ~= take.inc then
    return { 'again', take.inc }
  end
  local ids, tokens = {}, {}
  for _, part in ipairs(take.parts) do
    for i, id in ipairs(part.ids) do
      ids[#ids + 1], tokens[#tokens + 1] = id, part.tokens[i]
    end
  end
  -- Jobs that go to the front in one call keep their order.
  local queues = tonumber(ARGV[7])
  local keys, args = { unpack(KEYS, 1, 10) }, { 'g', 'front', ARGV[4], ARGV[5], 1, queues }
  keys[11] = KEYS[13]
  for i = 1, queues do
    keys[11 + i], args[6 + i] = KEYS[13 + i], ARGV[7 + i]
  end
  args[#args + 1], args[#args + 2] = take.inc, #ids
  for i = 1, #ids do
    args[#args + 1], args[#args + 2] = ids[i], tokens[i]
  end
  local letters = inflight_finish(keys, args)
  if type(letters) == 'table' then
    return letters
  end
  given_back = select(2, string.gsub(letters, 'd', ''))
  drop_request(requests, requests_at, key)
end
keep_request(requests, requests_at, '!' .. attempt, '', now, '')
return given_back
