-- Returns the INFO of the server that holds this key.
-- KEYS  1 any key
-- Answers  the sections `server` and `replication` of INFO
-- O(1)
return redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
