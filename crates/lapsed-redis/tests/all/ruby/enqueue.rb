# Enqueues jobs with Sidekiq's own client and says each one's jid, the first to be run first.
#
#   REDIS_URL, QUEUE, COUNT
require "sidekiq"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)

args = Array.new(Integer(ENV.fetch("COUNT"))) { |number| [number] }
puts Sidekiq::Client.push_bulk("class" => "Recorder", "queue" => ENV.fetch("QUEUE"), "args" => args)
