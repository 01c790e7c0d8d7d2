-- Jobs: `lapsed_inflight_enqueue`, `_take`, `_register`, `_held`, `_complete`, `_fail`, `_give_back`,
-- `_counts`.
-- KEYS  1 the prefix
-- ARGV  1 system, then: enqueue 2 queue [id payload]...; take 2 owner 3 incarnation or empty 4 queue
--       5 limit; register 2 owner 3 incarnation or empty 4 queue [id payload]...; held 2 owner
--       3 incarnation or empty 4 after, or empty 5 limit; complete [id token]...; fail 2 error
--       [id token]...; give_back 2 front or back [id token]...
-- Answers  enqueue: `queued` or `exists` a job; take, held: {id, token, payload, crashes} a job;
--          register: its token a job, nil where it is somewhere else; complete, fail, give_back: `done`,
--          `ended`, `superseded` or `gone` a claim, and for a single one that is not done an error;
--          counts: field, value, ...
-- O(jobs * log held)

local ENDS = { d = 'done', e = 'ended', s = 'superseded', g = 'gone' }
local ENDS_IN_WORDS = {
  e = 'its owner has ended, and the job is, or is about to be, somebody else\'s',
  s = 'this claim is over: the job was taken back and goes on without it',
  g = 'there is no such job any more: it was completed or removed',
}
local WRONG_JOB = 'ids and queues have 1 to 512 bytes of UTF-8 without control characters, a payload has at most '
  .. PAYLOAD_BYTES_MAX .. ' bytes'

-- The keys of one system, as the scripts of jobs share them.
local function job_ground(keys, args)
  local G = ground('inflight', keys[1], args[1])
  G.jobs, G.dead = G.key('jobs'), G.key('dead')
  G.hot = function(more)
    local all = { G.meta, G.lives, G.names, G.counts, G.jobs, G.dead, G.key('queues'), G.key('crashes'),
      G.key('crashes_at'), G.meta }
    return append(all, more)
  end
  return G
end

-- Functions know lapsed's own queues only; where the application's are used, whoever serves the system
-- has noted so.
local function not_own(G)
  local format = redis.call('HGET', G.meta, 'format')
  if format and format ~= 'own' then
    return no('INVALID', 'the queues of this system are the application\'s (' .. format
      .. '): take and give back there; register, complete and fail are for every system')
  end
  return nil
end

-- Pairs among the arguments, from one on, by what fits; nil if one does not.
local function pairs_from(args, from, fits)
  if (#args - from) % 2 ~= 1 then
    return nil
  end
  for i = from, #args, 2 do
    if not is_name(args[i]) or not fits(args[i + 1]) then
      return nil
    end
  end
  return true
end

local function is_payload(text)
  return #text <= PAYLOAD_BYTES_MAX and is_utf8(text)
end

local function is_token(text)
  return string.find(text, '^[1-9]%d*$') ~= nil and #text <= 16
end

-- Jobs as the scripts take them: id, queue, no way and no limit of their own, payload.
local function told(list, args, from, queue)
  for i = from, #args, 2 do
    append(list, { args[i], queue, '', '', args[i + 1] })
  end
  return list
end

-- What a holder needs of a job: id, token, payload, how many workers have died with it.
local function shown(id, token, tail)
  local _, _, _, crashes, _, from = read_tail(tail)
  local count = 0
  for _ in string.gmatch(crashes, '%d+') do
    count = count + 1
  end
  return { id, token, string.sub(tail, from), count }
end

-- Calls a script for the claimed incarnation, which it may have to be given: each call has its own keys, or the
-- second would record what it takes for an incarnation that the first was not given.
local function for_life(G, owner, inc, keys, call)
  local answer = until_told({ inc }, function(asked)
    local incarnation = asked[#asked]
    return call(append(G.hot(keys), { G.key('held:' .. incarnation) }), incarnation)
  end)
  return objection(answer, owner), answer
end

offer({
  name = 'lapsed_inflight_enqueue', keys = { 1, 1 }, args = { 4, 2 + 2 * KEYS_MAX },
  usage = '1 PREFIX SYSTEM QUEUE ID PAYLOAD... (at most ' .. KEYS_MAX .. ' jobs)',
  run = function(keys, args)
    local G = job_ground(keys, args)
    if not is_name(args[2]) or not pairs_from(args, 3, is_payload) then
      return no('INVALID', WRONG_JOB)
    end
    local refused = not_own(G)
    if refused then
      return refused
    end
    local letters = inflight_enqueue(G.hot({ G.key('queue:' .. args[2]) }), told({ 1, args[2] }, args, 3, args[2]))
    if type(letters) == 'table' then
      return letters
    end
    local words = {}
    for letter in string.gmatch(letters, '.') do
      words[#words + 1] = letter == 'q' and 'queued' or 'exists'
    end
    return words
  end,
})

-- Those of one incarnation: owner and incarnation come first.
local function of_life(name, args, usage, reads, run)
  offer({
    name = 'lapsed_inflight_' .. name, keys = { 1, 1 }, args = args, reads = reads, takes = name == 'take',
    usage = '1 PREFIX SYSTEM OWNER INCARNATION ' .. usage,
    run = function(keys, args, request)
      if not is_name(args[2]) or not is_claim(args[3]) then
        return no('INVALID', 'OWNER is a name, INCARNATION a number as `start` answers it, or empty')
      end
      local G = job_ground(keys, args)
      G.request = request
      return run(G, args[2], args[3], args)
    end,
  })
end

local function is_limit(text)
  local n = string.find(text, '^[1-9]%d*$') and tonumber(text)
  return n and n <= KEYS_MAX
end
local WRONG_LIMIT = 'LIMIT is between 1 and ' .. KEYS_MAX

of_life('take', { 5, 5 }, 'QUEUE LIMIT', false, function(G, owner, inc, args)
  if not is_name(args[4]) or not is_limit(args[5]) then
    return no('INVALID', 'QUEUE is a name, ' .. WRONG_LIMIT)
  end
  local refused = not_own(G)
  if refused then
    return refused
  end
  local more = { G.key('queue:' .. args[4]), G.key('requests'), G.key('requests_at') }
  local wrong, answer = for_life(G, owner, inc, more, function(keys, incarnation)
    local asked = G.request or { key = '', fingerprint = '' }
    local request = { asked.key, 'function', asked.fingerprint, 1 }
    local answers = inflight_take(keys, append({ 'own', args[4], 1, owner, inc, incarnation, args[5] }, request))
    return answers.err and answers or answers[1]
  end)
  if wrong then
    return wrong
  end
  local jobs = {}
  if answer[3] == 'kept' then
    for i = 5, #answer, 3 do
      jobs[#jobs + 1] = shown(answer[i + 1], answer[i], answer[i + 2])
    end
    return jobs
  end
  local first = tonumber(answer[3])
  for i = 5, #answer, 2 do
    jobs[#jobs + 1] = shown(answer[i], whole(first + #jobs), answer[i + 1])
  end
  return jobs
end)

of_life('register', { 6, 4 + 2 * KEYS_MAX }, 'QUEUE ID PAYLOAD... (at most ' .. KEYS_MAX .. ' jobs)', false,
  function(G, owner, inc, args)
    if not is_name(args[4]) or not pairs_from(args, 5, is_payload) then
      return no('INVALID', WRONG_JOB)
    end
    local format = redis.call('HGET', G.meta, 'format') or 'own'
    local wrong, answer = for_life(G, owner, inc, {}, function(keys, incarnation)
      return inflight_register(keys, told({ owner, inc, incarnation, format }, args, 5, args[4]))
    end)
    if wrong then
      return wrong
    end
    local tokens = {}
    for i = 2, #answer do
      tokens[i - 1] = answer[i] ~= 'x' and string.sub(answer[i], 2) or false
    end
    return tokens
  end)

-- What the incarnation holds, for a worker whose answer to a take was lost.
of_life('held', { 5, 5 }, 'AFTER LIMIT', true, function(G, owner, inc, args)
  if args[4] ~= '' and not is_name(args[4]) or not is_limit(args[5]) then
    return no('INVALID', 'AFTER is an id or empty, ' .. WRONG_LIMIT)
  end
  local incarnation, wrong = claimed_life(G, owner, inc)
  if not incarnation then
    return objection(wrong, owner)
  end
  local after = args[4] == '' and '-' or '(' .. args[4]
  local ids = redis.call('ZRANGEBYLEX', G.key('held:' .. incarnation), after, '+', 'LIMIT', 0, args[5])
  local jobs, records = {}, every('HMGET', G.jobs, ids)
  for i, id in ipairs(ids) do
    local token = records[i] and string.match(records[i], '^f:(%d+):' .. incarnation .. ':')
    if token then
      jobs[#jobs + 1] = shown(id, token, tail_of(records[i]))
    end
  end
  return jobs
end)

-- Ends claims; `how` and `word` as the script has them. First it is asked for their lives, then for the
-- queues that they go to.
local function end_claims(G, args, from, how, word)
  local noted = redis.call('HMGET', G.meta, 'format', 'outbox')
  local count, queues, letters = (#args - from + 1) / 2, {}, nil
  local lives = {}
  for i = 1, count do
    lives[i] = ''
  end
  for _ = 1, 3 do
    -- One life a claim, so that the answer is in their order.
    local keys, claims = {}, {}
    for i = 1, count do
      keys[i] = G.key('held:' .. lives[i])
      append(claims, { lives[i], 1, args[from + 2 * i - 2], args[from + 2 * i - 1] })
    end
    for _, queue in ipairs(queues) do
      keys[#keys + 1] = G.key('queue:' .. queue)
    end
    local head = append({ how, word, noted[1] or 'own', noted[2] or '', count, #queues }, queues)
    letters = inflight_finish(G.hot(keys), append(head, claims))
    if type(letters) ~= 'table' or letters.err then
      break
    end
    local list = letters[1] == 'lives' and lives or queues
    for i = 2, #letters do
      list[i - 1] = letters[i]
    end
  end
  if type(letters) == 'table' then
    return letters.err and letters or no('ERR', 'a script asked for the same thing twice; nothing was changed')
  end
  if count == 1 and letters ~= 'd' then
    return no('LOST', ENDS_IN_WORDS[letters] .. '; discard what was done')
  end
  local words = {}
  for letter in string.gmatch(letters, '.') do
    words[#words + 1] = ENDS[letter]
  end
  return words
end

local function claims_of(name, more, usage, run)
  offer({
    name = 'lapsed_inflight_' .. name, keys = { 1, 1 }, args = { 3 + more, 1 + more + 2 * KEYS_MAX },
    usage = '1 PREFIX SYSTEM ' .. usage .. 'ID TOKEN... (at most ' .. KEYS_MAX .. ' claims)',
    run = function(keys, args)
      if not pairs_from(args, 2 + more, is_token) then
        return no('INVALID', 'each ID is followed by its TOKEN, a number as it was answered')
      end
      return run(job_ground(keys, args), args)
    end,
  })
end

claims_of('complete', 0, '', function(G, args)
  return end_claims(G, args, 2, 'c', '')
end)

claims_of('fail', 1, 'ERROR ', function(G, args)
  if #args[2] > 4096 or not is_utf8(args[2]) then
    return no('INVALID', 'ERROR has at most 4096 bytes of UTF-8')
  end
  return end_claims(G, args, 3, 'f', args[2])
end)

claims_of('give_back', 1, 'front|back ', function(G, args)
  if args[2] ~= 'front' and args[2] ~= 'back' then
    return no('INVALID', 'a job goes to the `front` or to the `back` of its queue')
  end
  return not_own(G) or end_claims(G, args, 3, 'g', args[2])
end)

offer({
  name = 'lapsed_inflight_counts', keys = { 1, 1 }, args = { 1, 1 }, reads = true, usage = '1 PREFIX SYSTEM',
  run = function(keys, args)
    local G = job_ground(keys, args)
    local n = inflight_counts({ G.meta, G.jobs, G.dead }, { redis.call('HGET', G.meta, 'format') or 'own' })
    local answer = {}
    for i, what in ipairs({ 'entered', 'completed', 'queued', 'in_flight', 'dead', 'dropped' }) do
      append(answer, { what, tonumber(n[i]) })
    end
    return answer
  end,
})
