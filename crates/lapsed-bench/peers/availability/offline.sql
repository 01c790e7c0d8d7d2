-- The search for the silent, before the mirror: a scan by every process, every thirty seconds.
-- $1 seconds of silence
UPDATE mitra_online_status SET is_online = false, last_offline_at = now(), updated_at = now()
 WHERE is_online AND last_heartbeat_at < now() - $1::float8 * interval '1 second'
RETURNING mitra_id::text
