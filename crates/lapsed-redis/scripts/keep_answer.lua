-- Keeps the answer of a request that was carried out, unless the request has one.
-- KEYS  1 requests  2 requests_at
-- ARGV  1 key  2 fingerprint  3 the answer
-- Answers  1, or {'reused'}: the key came before with another fingerprint
-- O(log requests)
local now = clock()
local kept, reused = find_request(KEYS[1], ARGV[1], ARGV[2], now)
if reused then
  return { reused }
elseif kept then
  return 1
end
local no_way = may_keep(KEYS[1], KEYS[2])
if no_way then
  return no_way
end
keep_request(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now, ARGV[3])
return 1
