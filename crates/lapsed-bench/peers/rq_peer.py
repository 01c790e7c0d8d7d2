"""RQ's own recovery of jobs whose worker is gone: `python rq_peer.py REDIS_URL ORPHANS`.

Prepared with RQ itself: the jobs are enqueued in bulk with retries allowed (without, RQ's recovery
would fail them instead of putting them back), and a process of its own takes them as a worker does
(an execution each, in the registry of what is started), a thousand at a time, and is killed. Timed is `StartedJobRegistry.cleanup()`, which a worker
calls from its maintenance. A dead worker's jobs expire from that registry after a minute and a half;
cleanup's own `timestamp` argument says that this time has passed.
"""

import sys
import time

import redis
import rq
from peer import die, in_a_child_that_dies, measure
from rq.executions import Execution
from rq.job import Job
from rq.registry import StartedJobRegistry

QUEUE = "bench"
CHUNK = 1_000
LATER_S = 3_600


def enqueue(connection, orphans):
    queue = rq.Queue(QUEUE, connection=connection)
    for start in range(0, orphans, CHUNK):
        numbers = range(start, min(start + CHUNK, orphans))
        retry = rq.Retry(max=3)
        prepared = [queue.prepare_data("os.getpid", args=(n,), retry=retry) for n in numbers]
        queue.enqueue_many(prepared)


def orphan(url, orphans):
    """In a child: takes so many jobs and dies with them."""
    connection = redis.Redis.from_url(url)
    queue = rq.Queue(QUEUE, connection=connection)
    worker = rq.Worker([queue], connection=connection, name="gone")
    worker.register_birth()
    for _ in range(0, orphans, CHUNK):
        ids = [job_id.decode() for job_id in connection.lpop(queue.key, CHUNK)]
        with connection.pipeline(transaction=False) as pipeline:
            for job in Job.fetch_many(ids, connection=connection):
                Execution.create(job, worker.get_heartbeat_ttl(job), pipeline, worker.name)
                job.prepare_for_execution(worker.name, pipeline)
            pipeline.execute()
    die()


def prepare(url, orphans):
    in_a_child_that_dies(lambda: orphan(url, orphans))


def main(url, orphans):
    connection = redis.Redis.from_url(url)
    enqueue(connection, orphans)
    prepare(url, orphans)
    registry = StartedJobRegistry(QUEUE, connection=connection)
    held = connection.zcard(registry.key)
    if held != orphans:
        raise SystemExit(f"{held} of {orphans} jobs are started")

    measure(
        rq.VERSION,
        "StartedJobRegistry.cleanup()",
        lambda: registry.cleanup(timestamp=time.time() + LATER_S),
        lambda _: connection.llen(rq.Queue(QUEUE, connection=connection).key),
    )


main(sys.argv[1], int(sys.argv[2]))
