"""Jobs through RQ, from being enqueued until their worker is done with them: `python rq_jobs.py REDIS_URL JOBS`.

They are enqueued in bulk, a thousand at a time, while workers in processes of their own run them: `SimpleWorker`, which does not
start a process for each job as RQ's default worker does and is many times as fast. The job does nothing, and its result is not
kept. Timed is from the first job's enqueueing until none is queued or started.
"""

import sys

import redis
import rq
from peer import in_children, measure, until
from rq.registry import StartedJobRegistry

QUEUE = "bench"
CHUNK = 1_000
WORKERS = 2


def work(url):
    connection = redis.Redis.from_url(url)
    rq.SimpleWorker([rq.Queue(QUEUE, connection=connection)], connection=connection).work(logging_level="ERROR")


def main(url, jobs):
    connection = redis.Redis.from_url(url)
    queue = rq.Queue(QUEUE, connection=connection)
    started = StartedJobRegistry(QUEUE, connection=connection)

    def run():
        for start in range(0, jobs, CHUNK):
            numbers = range(start, min(start + CHUNK, jobs))
            queue.enqueue_many([queue.prepare_data("os.getpid", result_ttl=0) for _ in numbers])
        until("all jobs done", lambda: connection.llen(queue.key) == 0 and connection.zcard(started.key) == 0)

    with in_children(WORKERS, lambda: work(url)):
        until("the workers", lambda: len(rq.Worker.all(connection=connection)) == WORKERS)
        measure(
            rq.VERSION,
            f"enqueue_many, {WORKERS} SimpleWorker",
            run,
            lambda _: jobs - connection.llen(queue.key) - connection.zcard(started.key),
        )


main(sys.argv[1], int(sys.argv[2]))
