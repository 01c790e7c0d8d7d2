-- Returns the term that is held now.
-- KEYS  the base keys
-- Answers  {number, holder, until_ms}, or {} if no one holds it
-- O(1)
local K = base(KEYS)
local known = redis.call('HMGET', K.meta, 'term', 'holder', 'until')
if not (known[1] and known[2]) or (clock()) >= tonumber(known[3] or 0) then
  return {}
end
return known
