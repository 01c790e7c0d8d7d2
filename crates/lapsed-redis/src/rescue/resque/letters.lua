-- Resque: a job that has failed is an element of the list `failed`; l.place is that element, if it is short. Keys as in `put_back.lua`. The newest
-- 1,000 are looked through.
local USES = { [8] = 'list' }
local WRITES = {}

local function find(l)
  return l.place ~= '' and redis.call('LPOS', l.keys[8], l.place, 'RANK', -1, 'MAXLEN', 1000) and l.place or nil
end

-- `Resque::Failure.requeue` goes by the place in the list, and marks the element.
local retry, remove = nil, nil
