-- Carries out a script once for one request; a repetition of the request gets the same answer. The script
-- is `operation`, a function of its KEYS and ARGV.
-- KEYS  those of the script, then: requests  requests_at
-- ARGV  those of the script, then: key  fingerprint
-- Answers  what the script answers, or {'reused'}: the key came before with another fingerprint
-- O(the script)
--
-- An answer by which nothing was changed is not kept: an error, and words that ask for more or refuse.
local requests_at, requests = table.remove(KEYS), table.remove(KEYS)
local fingerprint, key = table.remove(ARGV), table.remove(ARGV)
local answer, reused = once(requests, requests_at, key, fingerprint, is_refusal, function()
  return operation(KEYS, ARGV)
end)
return reused and { reused } or answer
