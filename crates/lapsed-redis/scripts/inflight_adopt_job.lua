-- One job: in flight as the application registered it, or a dead letter.
-- KEYS  the base keys, then: 12 index  13 jobs  14 dead letters  15 crashes  16 the key by which its
--       process says that it lives  17 details by time (KEYS 1 again: none)
-- ARGV  1 id  2 threshold_ms  3 crash_window_ms  4 format of the queues
-- Answers  {} | {'dead', now, record of the dead letter}
--          {'held', now, payload, queue or '', crashes, last beat, due_ms, registered or ''}
-- O(log jobs + bytes of the payload)
local K = base(KEYS)
local id, threshold = ARGV[1], tonumber(ARGV[2])
local now = clock()
local score, payload = redis.call('ZSCORE', KEYS[12], id), redis.call('HGET', KEYS[13], id)
if not score or not payload then
  local letter = redis.call('HGET', KEYS[14], id)
  return letter and { 'dead', whole(now), letter } or {}
end
local back = presence(K.meta, now, 0, 0, false) or 0
local queue, crash_id = read_job(payload, ARGV[4])
local times = queue and counting(redis.call('HGET', KEYS[15], crash_id) or '', tonumber(ARGV[3]), now) or {}
local deadline, at = deadline_of(score, threshold)
local due = deadline and math.max(deadline, back > at and back + threshold or 0) or 0
if KEYS[16] ~= KEYS[1] then
  due = math.max(due, good_until(now, redis.call('PTTL', KEYS[16]), threshold) or 0)
end
local since = KEYS[17] ~= KEYS[1] and to_ms(redis.call('ZSCORE', KEYS[17], id) or '0') or 0
return { 'held', whole(now), payload, queue or '', whole(#times), whole(at or 0), whole(due),
  since > 0 and whole(since) or '' }
