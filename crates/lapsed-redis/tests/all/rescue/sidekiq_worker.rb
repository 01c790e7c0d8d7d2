# Sidekiq beside a test. Usage: sidekiq_worker.rb add ID... | work
#
# `add` enqueues jobs whose jid is ID and prints `added`. `work` runs Sidekiq as its command does: a job prints `started ID`, waits
# for SLOW seconds, and prints `ran ID`. It prints `ready` once it is up, and ends in order after SIGTERM.
#
#   REDIS_URL
#   BEAT     seconds between two heartbeats; Sidekiq's own 5 if it is not given
#   POLL     seconds between two looks for scheduled jobs
#   FETCH    a file that installs another fetcher
require "sidekiq/cli"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Sidekiq.logger.level = Logger::ERROR

def say(line)
  $stdout.puts(line)
  $stdout.flush
end

class Job
  include Sidekiq::Worker

  def perform(name)
    say "started #{name}"
    sleep(Float(ENV.fetch("SLOW", "0")))
    say "ran #{name}"
  end
end

what, *ids = ARGV.dup
ARGV.clear
if what == "add"
  ids.each { |id| Sidekiq::Client.push("class" => "Job", "queue" => "mails", "args" => [id], "jid" => id) }
  say "added"
  exit
end

if ENV["BEAT"]
  Sidekiq::Launcher.send(:remove_const, :BEAT_PAUSE)
  Sidekiq::Launcher.const_set(:BEAT_PAUSE, Float(ENV["BEAT"]))
end
Sidekiq.configure_server do |config|
  config.on(:startup) { say "ready" }
  if ENV["FETCH"]
    require ENV["FETCH"]
    Lapsed::Fetch.install(config)
  end
end
cli = Sidekiq::CLI.instance
# An idle thread waits for a job for 2 s. It must be over with that before the running jobs are pushed back: else Redis gives one of
# them to the idle thread, which is about to be killed.
cli.parse(["-r", __FILE__, "-c", "2", "-t", "3", "-q", "mails"])
Sidekiq.options[:poll_interval_average] = Float(ENV["POLL"]) if ENV["POLL"]
cli.run(boot_app: false)
