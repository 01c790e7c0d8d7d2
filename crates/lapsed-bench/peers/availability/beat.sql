-- The ping itself, before the mirror: the second of two statements.
-- $1 who
UPDATE mitra_online_status SET last_heartbeat_at = now(), updated_at = now()
 WHERE mitra_id = $1::text::uuid AND is_online
