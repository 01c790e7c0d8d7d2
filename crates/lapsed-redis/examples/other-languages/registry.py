import os, redis
r = redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

incarnation, deadline_ms = r.fcall("lapsed_registry_start", 2, "connections:registry", "instance:heartbeat:i-1", "devices", "i-1", 90000)
r.fcall("lapsed_registry_register", 1, "connections:registry", "devices", "i-1", incarnation, "356307042441013")
r.fcall("lapsed_registry_beat", 2, "connections:registry", "instance:heartbeat:i-1", "devices", "i-1", incarnation)  # every 30 s
