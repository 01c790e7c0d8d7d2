-- Heartbeats that are dated in the future are dated now: such a provider is fresh for one threshold from now on, and
-- not until that date has passed.
-- KEYS  1 meta  2 online  3 deactivated  4 versions
-- ARGV  1 and 2 what stands before and after a name in a heartbeat's key, then the names
-- Answers  how many were changed
-- O(names)
--
-- The times that it writes are noted in `batched`, so that they are not taken for those of an application that dates many
-- beats alike (C1).
-- Nothing can come in between, because it is one script. A heartbeat that the application has written since the caller
-- read it is judged as it is now; one that it writes later replaces this one.
local now = clock()
local ids = {}
for at = 3, #ARGV do
  ids[#ids + 1] = ARGV[at]
end
local keys = keys_of(ARGV[1], ids, ARGV[2])
local texts, dates, text, changed = texts_of(keys), {}, iso(now), 0
for i = 1, #keys do
  if texts[i] and (time_of(texts[i], dates) or 0) > now then
    redis.call('SET', keys[i], text, 'KEEPTTL')
    changed = changed + 1
  end
end
note_batched(KEYS[1], redis.call('HGET', KEYS[1], 'batched'), now, changed)
return changed
