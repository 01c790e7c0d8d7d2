-- One page of jobs whose last heartbeat is older than the threshold, in the order of the index.
-- KEYS  1 index  2 jobs
-- ARGV  1 threshold_ms  2 limit  3 score to go on after, or empty  4 id of that score
--       5 the most bytes of payloads in a page (but one job at least)
-- Answers  {`1` if there are no more, score, id, score, id ...}
-- O(log jobs * log of those with one score + page)
--
-- Scores in seconds come before those in milliseconds: each part has those that are due in front.
local index, jobs = KEYS[1], KEYS[2]
local now = clock()
local limit, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[5])
local until_ms = now - tonumber(ARGV[1])

-- As the server orders ids, whatever language it was started in.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first one after that place.
local function rank_after(score, id)
  local low, high = redis.call('ZCOUNT', index, '-inf', '(' .. score), redis.call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = redis.call('ZRANGE', index, middle, middle)[1]
    if is_before(id, there) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local from = ARGV[3] ~= '' and rank_after(ARGV[3], ARGV[4]) or 0
local parts = {
  { 0, redis.call('ZCOUNT', index, '-inf', string.format('%.3f', math.max(until_ms, 0) / 1000)) },
  { redis.call('ZCOUNT', index, '-inf', '(100000000000'), redis.call('ZCOUNT', index, '-inf', whole(until_ms)) },
}
local answer, bytes, last = { '1' }, 0, true
for _, part in ipairs(parts) do
  local first, past = math.max(part[1], from), part[2]
  local room = limit - (#answer - 1) / 2
  if first < past and last then
    local rows = room > 0 and redis.call('ZRANGE', index, first, math.min(past, first + room) - 1, 'WITHSCORES') or {}
    last = first + #rows / 2 >= past
    for i = 1, #rows, 2 do
      bytes = bytes + redis.call('HSTRLEN', jobs, rows[i])
      if bytes > bytes_max and #answer > 1 then
        last = false
        break
      end
      answer[#answer + 1] = rows[i + 1]
      answer[#answer + 1] = rows[i]
    end
  end
end
answer[1] = last and '1' or '0'
return answer
