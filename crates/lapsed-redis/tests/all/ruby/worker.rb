# A real Sidekiq worker process, as the command `sidekiq -r worker.rb` runs one. What it did stands in
# Redis: for each job that it ran, the list "ran" gets "JID ARGUMENT".
#
#   REDIS_URL, QUEUE
#
# Says "ready" once it is up. Ends after SIGTERM, or when its input is closed.
require "sidekiq/cli"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Sidekiq.logger.level = Logger::WARN

class Recorder
  include Sidekiq::Worker

  def perform(number)
    Sidekiq.redis { |redis| redis.rpush("ran", "#{jid} #{number}") }
  end
end

Sidekiq.configure_server do |config|
  config.on(:startup) do
    $stdout.puts("ready")
    $stdout.flush
  end
end
Thread.new do
  $stdin.read
  Process.kill("TERM", Process.pid)
end
cli = Sidekiq::CLI.instance
cli.parse(["-r", __FILE__, "-c", "4", "-q", ENV.fetch("QUEUE")])
cli.run(boot_app: false)
