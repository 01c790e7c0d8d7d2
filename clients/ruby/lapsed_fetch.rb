# frozen_string_literal: true

# A fetcher for Sidekiq 6 that loses no job when its process is killed. It needs Sidekiq and its `redis` gem, and nothing else.
#
#   require "lapsed_fetch"
#   Sidekiq.configure_server { |config| Lapsed::Fetch.install(config) }
#
# A job moves from `queue:NAME` to the process's own list `working:queue:NAME:ID` in one step of Redis, and is removed from it
# when it has ended. `reliable-fetcher-heartbeat-ID` (with dashes) lives as long as the process does, plus 60 s. These are the
# keys of GitLab's `reliable-fetch`. lapsed (preset = "sidekiq") puts back what is on the list of a dead process, exactly once.
#
# What it costs: with several queues, an idle process needs up to 1 s to notice a job, because Redis can wait for one list only.
require "sidekiq"

module Lapsed
  class Fetch
    BEAT_EVERY = 15
    BEAT_TTL = 60
    WAIT = 2
    WAIT_WITH_SEVERAL_QUEUES = 1

    # A job that was taken, and how it ends.
    UnitOfWork = Struct.new(:queue, :job, :working) do
      def queue_name
        queue.delete_prefix("queue:")
      end

      def acknowledge
        Sidekiq.redis { |redis| redis.lrem(working, 1, job) }
      end

      def requeue
        Sidekiq.redis do |redis|
          redis.multi do |transaction|
            transaction.rpush(queue, job)
            transaction.lrem(working, 1, job)
          end
        end
      end
    end

    # Makes Sidekiq take its jobs by this fetcher.
    def self.install(config)
      raise "lapsed_fetch is for Sidekiq 6, not #{Sidekiq::VERSION}" unless Sidekiq::VERSION.start_with?("6.")

      options = config.respond_to?(:options) ? config.options : config
      options[:fetch] = new(options)
    end

    def initialize(options)
      @options = options
      @start = Mutex.new
    end

    def retrieve_work
      start_heartbeat
      queues = queues_in_order
      queues.each do |queue|
        unit = take(queue) { |redis, working| redis.rpoplpush(queue, working) }
        return unit if unit
      end
      wait_on(queues)
    end

    def bulk_requeue(in_progress, _options)
      in_progress.each(&:requeue)
      Sidekiq.logger.info("Pushed #{in_progress.size} jobs back to Redis") unless in_progress.empty?
    rescue => e
      # They are on the working list, and lapsed puts them back.
      Sidekiq.logger.warn("Failed to requeue #{in_progress.size} jobs: #{e.message}")
    end

    private

    def take(queue)
      working = "working:#{queue}:#{identity}"
      job = Sidekiq.redis { |redis| yield redis, working }
      UnitOfWork.new(queue, job, working) if job
    end

    def wait_on(queues)
      if queues.empty?
        sleep(WAIT)
        return nil
      end
      seconds = queues.size == 1 ? WAIT : WAIT_WITH_SEVERAL_QUEUES
      take(queues.first) { |redis, working| redis.brpoplpush(queues.first, working, timeout: seconds) }
    end

    # As Sidekiq's own fetcher: in the given order if it is strict, else at random by weight.
    def queues_in_order
      queues = @options[:queues].map { |name| "queue:#{name}" }
      queues.shuffle! unless @options[:strict]
      queues.uniq
    end

    # The first beat comes before the first job is taken: a job on a list without a beat would be taken for an orphan.
    def start_heartbeat
      @start.synchronize do
        return if @heartbeat&.alive?

        beat
        @heartbeat = Thread.new { beat_for_ever }
      end
    end

    def beat_for_ever
      loop do
        sleep(BEAT_EVERY)
        beat
      rescue => e
        Sidekiq.logger.error("lapsed_fetch: #{e.message}")
        sleep(1)
        retry
      end
    end

    def beat
      key = "reliable-fetcher-heartbeat-#{identity.tr(":", "-")}"
      Sidekiq.redis { |redis| redis.set(key, 1, ex: BEAT_TTL) }
    end

    # Sidekiq's own name of this process.
    def identity
      @identity ||= Object.new.extend(defined?(Sidekiq::Component) ? Sidekiq::Component : Sidekiq::Util).identity
    end
  end
end
