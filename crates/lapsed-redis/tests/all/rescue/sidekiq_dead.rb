# Sidekiq's own view of its dead jobs: a line `dead JID ERROR` for each, then `listed`.
#
#   REDIS_URL
require "sidekiq/api"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Sidekiq::DeadSet.new.each { |job| puts "dead #{job.jid} #{job["error_class"]}" }
puts "listed"
