-- Who can take work now, asked of PostgreSQL alone: the JOIN that seed 002 describes as the way before the
-- mirror (and as the way back when the mirror is away): everybody online, active and not silent, with the number
-- of sessions that occupy them, those that are full left out.
-- $1 most sessions  $2 seconds of silence
SELECT m.id::text, count(c.id) AS active_session_count
  FROM mitras m
  JOIN mitra_online_status s ON s.mitra_id = m.id
  LEFT JOIN chat_sessions c ON c.mitra_id = m.id AND c.status IN ('active', 'pending_payment')
 WHERE s.is_online
   AND m.is_active
   AND s.last_heartbeat_at > now() - $2::float8 * interval '1 second'
 GROUP BY m.id
HAVING count(c.id) < $1::bigint
