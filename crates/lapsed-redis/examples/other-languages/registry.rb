require "redis"
redis = Redis.new(url: ENV["REDIS_URL"])

incarnation, _ = redis.call("FCALL", "lapsed_registry_start", 2, "connections:registry", "instance:heartbeat:i-1", "devices", "i-1", 90000)
redis.call("FCALL", "lapsed_registry_register", 1, "connections:registry", "devices", "i-1", incarnation, "356307042441013")
redis.call("FCALL", "lapsed_registry_beat", 2, "connections:registry", "instance:heartbeat:i-1", "devices", "i-1", incarnation) # every 30 s
