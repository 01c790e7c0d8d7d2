-- Appends a note to a book; the book keeps its newest notes.
-- KEYS  1 the hash of notes  2 the book's stream
-- ARGV  1 the book  2 text  3 how many notes the book keeps
-- Answers  its number: the clock's microseconds, or more if the book is ahead of them
-- O(1)
local now, us = clock()
local field = 'last:' .. ARGV[1]
local seq = whole(math.max(tonumber(redis.call('HGET', KEYS[1], field) or 0) + 1, us))
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[3], seq .. '-0', 'at', whole(now), 'text', ARGV[2])
redis.call('HSET', KEYS[1], field, seq)
return seq
