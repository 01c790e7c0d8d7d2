# Sidekiq beside a test. Usage: sidekiq_worker.rb add ID... | feed | work | clean
#
# `add` enqueues jobs whose jid is ID and prints `added`; `feed` enqueues each `ID SECONDS` that it reads from stdin and prints `added
# ID-ATTEMPT`. `clean` prints `ready`, and after each line on stdin lets Sidekiq remove dead processes and prints `cleaned`. `work` runs Sidekiq as its command does: a job prints `started ID`, waits
# for SLOW seconds, and prints `ran ID`. It prints `ready` once it is up, and ends in order after SIGTERM.
#
#   REDIS_URL
#   BEAT     seconds between two heartbeats; Sidekiq's own 5 if it is not given
#   POLL     seconds between two looks for scheduled jobs
#   FETCH    a file that installs another fetcher
#   CONCURRENCY  jobs at a time, 2 if it is not given
require "sidekiq/cli"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Sidekiq.logger.level = Logger::ERROR

def say(line)
  $stdout.puts(line)
  $stdout.flush
end

class Job
  include Sidekiq::Worker

  def perform(name, seconds = "0")
    say "started #{name}"
    sleep(Float(ENV.fetch("SLOW", seconds)))
    say "ran #{name}"
  end
end

what, *ids = ARGV.dup
ARGV.clear
if what == "add"
  ids.each { |id| Sidekiq::Client.push("class" => "Job", "queue" => "mails", "args" => [id], "jid" => id) }
  say "added"
  exit
elsif what == "feed"
  $stdin.each_line do |line|
    base, seconds = line.split
    # A call without an answer may have been carried out: the next attempt is another job.
    name = (0..).lazy.map { |attempt| "#{base}-#{attempt}" }.find do |id|
      Sidekiq::Client.push("class" => "Job", "queue" => "mails", "args" => [id, seconds], "jid" => id)
    rescue Redis::BaseError
      sleep 0.05
      false
    end
    say "added #{name}"
  end
  exit
elsif what == "clean"
  require "sidekiq/api"
  say "ready"
  $stdin.each_line do
    # Looking at the processes removes the dead ones first.
    Sidekiq::ProcessSet.new.size
    say "cleaned"
  end
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
cli.parse(["-r", __FILE__, "-c", ENV.fetch("CONCURRENCY", "2"), "-t", "3", "-q", "mails"])
Sidekiq.options[:poll_interval_average] = Float(ENV["POLL"]) if ENV["POLL"]
cli.run(boot_app: false)
