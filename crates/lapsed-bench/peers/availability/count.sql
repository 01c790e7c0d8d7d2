-- How many can take work now: what each process of seed 002 asked PostgreSQL every ten seconds for the beacon,
-- before the mirror. The same JOIN.
-- $1 most sessions  $2 seconds of silence
SELECT count(*)
  FROM (SELECT m.id
          FROM mitras m
          JOIN mitra_online_status s ON s.mitra_id = m.id
          LEFT JOIN chat_sessions c ON c.mitra_id = m.id AND c.status IN ('active', 'pending_payment')
         WHERE s.is_online
           AND m.is_active
           AND s.last_heartbeat_at > now() - $2::float8 * interval '1 second'
         GROUP BY m.id
        HAVING count(c.id) < $1::bigint) AS available
