-- The look at whoever pings, before the mirror: seed 002 counts it as the first of two statements a ping.
-- $1 who
SELECT id::text, display_name, is_active FROM mitras WHERE id = $1::text::uuid
