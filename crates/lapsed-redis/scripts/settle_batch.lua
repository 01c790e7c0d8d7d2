-- Returns the receipts of a batch that was carried out; a batch that was not is forbidden from now on.
-- KEYS  the base keys
-- ARGV  1 sweeper  2 number of the batch
-- Answers  {first, last} receipt, or {} (and the batch is forbidden from now on)
-- O(log batches)
local K = base(KEYS)
local field = ARGV[1] .. '#' .. ARGV[2]
local range = redis.call('HGET', K.batches, field)
if not range then
  redis.call('HSET', K.batches, field, 'never')
  redis.call('ZADD', K.batches_at, whole((clock())), field)
end
local first, last = string.match(range or '', '^(%d+),(%d+)$')
return first and { first, last } or {}
