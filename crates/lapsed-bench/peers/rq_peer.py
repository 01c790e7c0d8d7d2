"""RQ's own recovery of jobs whose worker is gone: `python rq_peer.py REDIS_URL ORPHANS`.

Prepared with RQ itself: the jobs are enqueued in bulk with retries allowed (without, RQ's recovery
would fail them instead of putting them back), and a process of its own takes them as a worker does
(an execution each, in the registry of what is started), a thousand at a time, and is killed. Timed is `StartedJobRegistry.cleanup()`, which a worker
calls from its maintenance. A dead worker's jobs expire from that registry after a minute and a half;
cleanup's own `timestamp` argument says that this time has passed.

Says its version and what it will call on stdout, waits for a line on stdin, recovers, says the result.
"""

import json
import os
import signal
import sys
import time

import redis
import rq
from rq.executions import Execution
from rq.job import Job
from rq.registry import StartedJobRegistry

QUEUE = "bench"
CHUNK = 1_000
LATER_S = 3_600


def say(what):
    print(json.dumps(what), flush=True)


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
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(url, orphans):
    child = os.fork()
    if child == 0:
        orphan(url, orphans)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("the worker did not die with its jobs")


def main(url, orphans):
    connection = redis.Redis.from_url(url)
    enqueue(connection, orphans)
    prepare(url, orphans)
    registry = StartedJobRegistry(QUEUE, connection=connection)
    held = connection.zcard(registry.key)
    if held != orphans:
        raise SystemExit(f"{held} of {orphans} jobs are started")

    say({"version": rq.VERSION, "call": "StartedJobRegistry.cleanup()"})
    sys.stdin.readline()
    began = time.perf_counter()
    registry.cleanup(timestamp=time.time() + LATER_S)
    took = time.perf_counter() - began

    recovered = connection.llen(rq.Queue(QUEUE, connection=connection).key)
    say({"took_ms": took * 1e3, "recovered": recovered})


main(sys.argv[1], int(sys.argv[2]))
