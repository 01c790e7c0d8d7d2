-- The answer that is kept for a request.
-- KEYS  1 requests
-- ARGV  1 key  2 fingerprint
-- Answers  {} if none is, {the answer}, or {'reused', ''}: the key came before with another fingerprint
-- O(1)
local kept, reused = find_request(KEYS[1], ARGV[1], ARGV[2], (clock()))
if reused then
  return { reused, '' }
end
return kept and { kept } or {}
