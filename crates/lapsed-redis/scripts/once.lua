-- Carries out a script once for one request; a repetition of the request gets the same answer. The script
-- is `operation`, a function of its KEYS and ARGV.
-- KEYS  those of the script, then: requests  requests_at
-- ARGV  those of the script, then: key  fingerprint
-- Answers  {`1` if the answer is kept, or `0`, what the script answers}, or {'reused'}: the key came before with another
--          fingerprint, or the script's error
-- O(the script)
--
-- An answer by which nothing was changed is not kept: an error, and words that ask for more or refuse.
local requests_at, requests = table.remove(KEYS), table.remove(KEYS)
local fingerprint, key = table.remove(ARGV), table.remove(ARGV)
local refusals = { none = true, before = true, taken = true, dead = true, flying = true, gone = true, refused = true,
  left = true, queued = true }
local function refuses(answer)
  return is_refusal(answer) or type(answer) == 'table' and refusals[answer[1]] == true
end
local answer, reused = once(requests, requests_at, key, fingerprint, refuses, function()
  return operation(KEYS, ARGV)
end)
if reused then
  return { reused }
elseif type(answer) == 'table' and answer.err then
  return answer
end
return { refuses(answer) and '0' or '1', answer }
