# Sidekiq's own view of its dead jobs. Says a line for each ("dead" and a JSON object), then "listed"; then
# obeys what it reads:
#
#   retry JID    retries that dead job as Sidekiq's Web UI does, and says "retried"
#
#   REDIS_URL
require "sidekiq/api"

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)

def say(line)
  $stdout.puts(line)
  $stdout.flush
end

Sidekiq::DeadSet.new.each do |job|
  shown = { jid: job.jid, queue: job.queue, args: job.args, error: job.error?, at: job.at.to_f }
  say "dead #{JSON.generate(shown.merge(item: job.item))}"
end
say "listed"
$stdin.each_line do |line|
  verb, jid = line.split
  abort "what is #{line.inspect}?" unless verb == "retry"
  Sidekiq::DeadSet.new.find_job(jid).retry
  say "retried"
end
