# A process that takes jobs off a Sidekiq queue, registers them as in flight, beats by itself, and
# finishes none unless told to: the application whose keys are adopted.
#
#   REDIS_URL, QUEUE, COUNT      where, from what, and how many to take
#   PREFIX                       of the keys: "sidekiq:async_http:" unless said
#   MEMBERS=bare|process         a request's UUID alone, or behind "host:pid:hex/" with a list of processes
#   INTERVAL, THRESHOLD          seconds: heartbeat_interval (60), orphan_threshold (300)
#
# Says "held ID JID" for each job, then "holding". Obeys lines on stdin and answers each with one:
#   beat        all its jobs beat now                           -> "beaten"
#   finish ID   as after the work: the job leaves both keys     -> "finished ID N" (N: was it there?)
#   lock        tries to get the collector's lock               -> "lock true|false"
require "json"
require "redis"
require "securerandom"
require "socket"

class Holder
  PREFIX = ENV.fetch("PREFIX", "sidekiq:async_http:")
  INDEX = "#{PREFIX}inflight_index"
  JOBS = "#{PREFIX}inflight_jobs"
  LOCK = "#{PREFIX}gc_lock"
  PROCESSES = "#{PREFIX}processes"
  INTERVAL = Float(ENV.fetch("INTERVAL", "60"))
  THRESHOLD = Float(ENV.fetch("THRESHOLD", "300"))
  KEYS_TTL = [THRESHOLD * 3, 3600].max.round
  LOCK_TTL = [INTERVAL * 2, 120].max.round

  def initialize
    @process = "#{Socket.gethostname.tr(":/", "--")}:#{Process.pid}:#{SecureRandom.hex(8)}"
    @has_process = ENV.fetch("MEMBERS", "bare") == "process"
    @ids = []
    @mutex = Mutex.new
    @redis = connect
  end

  # Pops first and registers then, as the application does: what is between is its own risk.
  def take(queue)
    _, payload = @redis.brpop("queue:#{queue}", timeout: 30)
    abort "no job on #{queue}" unless payload
    id = @has_process ? "#{@process}/#{SecureRandom.uuid}" : SecureRandom.uuid
    @redis.multi do |transaction|
      transaction.zadd(INDEX, now_ms, id)
      transaction.hset(JOBS, id, payload)
      transaction.expire(INDEX, KEYS_TTL)
      transaction.expire(JOBS, KEYS_TTL)
    end
    @mutex.synchronize { @ids << id }
    say "held #{id} #{JSON.parse(payload)["jid"]}"
  end

  # On a connection of its own: a beat waits for no pop.
  def beat_for_ever
    own = connect
    Thread.new do
      loop do
        beat(own)
        sleep INTERVAL
      end
    end.abort_on_exception = true
  end

  def obey(order)
    verb, id = order.split
    case verb
    when "beat"
      beat(@redis)
      say "beaten"
    when "finish" then say "finished #{id} #{finish(id)}"
    when "lock" then say "lock #{@redis.set(LOCK, @process, nx: true, ex: LOCK_TTL)}"
    else abort "what is #{order.inspect}?"
    end
  end

  def say(line)
    $stdout.puts(line)
    $stdout.flush
  end

  private

  def beat(redis)
    ids = @mutex.synchronize { @ids.dup }
    redis.pipelined do |pipeline|
      # The first generation of the layout neither asks for XX nor renews the keys' own time to live.
      ids.each { |id| pipeline.zadd(INDEX, now_ms, id, xx: @has_process) }
      renew(pipeline) if @has_process
    end
  end

  def renew(pipeline)
    pipeline.expire(INDEX, KEYS_TTL)
    pipeline.expire(JOBS, KEYS_TTL)
    pipeline.sadd?(PROCESSES, @process)
    pipeline.expire(PROCESSES, KEYS_TTL)
    pipeline.set("#{PROCESSES}:#{@process}:max_connections", 256, ex: (INTERVAL * 2).ceil)
  end

  def finish(id)
    @mutex.synchronize { @ids.delete(id) }
    _, removed = @redis.multi do |transaction|
      transaction.zrem(INDEX, id)
      transaction.hdel(JOBS, id)
    end
    removed
  end

  def connect
    Redis.new(url: ENV.fetch("REDIS_URL"))
  end

  def now_ms
    (Time.now.to_f * 1000).round
  end
end

holder = Holder.new
holder.beat_for_ever
Integer(ENV.fetch("COUNT")).times { holder.take(ENV.fetch("QUEUE")) }
holder.say "holding"
$stdin.each_line { |line| holder.obey(line) }
