require "redis"
redis = Redis.new(url: ENV["REDIS_URL"])

incarnation, _ = redis.call("FCALL", "lapsed_inflight_start", 1, "lapsed:inflight", "mail", "w-1", 300000)
redis.call("FCALL", "lapsed_inflight_enqueue", 1, "lapsed:inflight", "mail", "welcome", "job-1", '{"to":"ada"}', "job-2", '{"to":"bob"}')
(id, token, payload, _), _ = redis.call("FCALL", "lapsed_inflight_take", 1, "lapsed:inflight", "mail", "w-1", incarnation, "welcome", 1)
redis.call("FCALL", "lapsed_inflight_beat", 1, "lapsed:inflight", "mail", "w-1", incarnation) # every 60 s, while it works on it
redis.call("FCALL", "lapsed_inflight_complete", 1, "lapsed:inflight", "mail", id, token) # `LOST` if it was too slow
