import os, redis
r = redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

incarnation, deadline_ms = r.fcall("lapsed_sessions_start", 1, "disconnected_sessions", "chat", "i-1", 90000)
r.fcall("lapsed_sessions_activate", 4, "disconnected_sessions", "session:s-1", "ref_count:s-1", "broadcaster:", "chat", "s-1", "broadcaster_user_id", "b-1")
references, mine, incarnation = r.fcall("lapsed_sessions_connect", 3, "disconnected_sessions", "session:s-1", "ref_count:s-1", "chat", "s-1", "i-1", incarnation)
