"""RQ beside a test. Usage: rq_worker.py add ID... | feed | work NAME | orphans RETRIES ID... | clean

`add` enqueues jobs and prints `added`; `feed` enqueues each `ID SECONDS` that it reads from stdin and prints `added ID-ATTEMPT`. `work` runs
RQ's own forking worker: a job prints `started ID HORSE`, waits until the environment's SLOW seconds are over, and prints `ran
ID`. With SCHEDULER in the environment, it also runs RQ's scheduler. With ALSO in the environment, the worker serves that queue, too. HORSE_DELAY: seconds that a work horse needs before it
begins, as if it imported much. BEAT: seconds between two heartbeats of a working worker. With SIMPLE, a job runs in the worker itself. `orphans` leaves jobs as a killed worker `gone` leaves them, whose deadline has passed, and
prints `added`. `clean` prints `ready`, and after each line on stdin runs RQ's own cleanup once and prints `cleaned`.
"""
import itertools
import logging
import os
import socket
import sys
import time
import urllib.parse

import redis
import rq
from rq.executions import Execution
from rq.registry import StartedJobRegistry


# A work horse whose server has been gone for so many seconds belongs to a test that is over.
GONE_FOR_S = 10


def wait(seconds):
    url = urllib.parse.urlparse(os.environ["REDIS_URL"])
    until = seen = time.monotonic()
    until += seconds
    while time.monotonic() < until:
        time.sleep(min(0.5, max(0, until - time.monotonic())))
        try:
            socket.create_connection((url.hostname, url.port), timeout=1).close()
            seen = time.monotonic()
        except OSError:
            if time.monotonic() > seen + GONE_FOR_S:
                os._exit(1)


def work_on(name, seconds):
    print(f"started {name} {os.getpid()}", flush=True)
    wait(float(os.environ.get("SLOW", seconds)))
    print(f"ran {name}", flush=True)


class SlowHorses(rq.Worker):
    def perform_job(self, job, queue):
        time.sleep(float(os.environ.get("HORSE_DELAY", 0)))
        return super().perform_job(job, queue)


def retries(count):
    return rq.Retry(max=count) if count else None


def leave(connection, queue, job):
    """As `prepare_execution` and `prepare_job_execution`, and 100 s later."""
    queue.remove(job)
    with connection.pipeline() as pipeline:
        execution = Execution.create(job, 90, pipeline, worker_name="gone")
        job.prepare_for_execution("gone", pipeline)
        pipeline.zadd(f"rq:wip:{queue.name}", {execution.composite_key: int(time.time()) - 10})
        pipeline.execute()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    import rq_worker

    logging.getLogger("rq").setLevel(logging.ERROR)
    logging.getLogger("rq.registry").setLevel(logging.ERROR)
    connection = redis.Redis.from_url(os.environ["REDIS_URL"])
    queue = rq.Queue("mails", connection=connection)
    if sys.argv[1] == "add":
        for name in sys.argv[2:]:
            queue.enqueue(rq_worker.work_on, name, 0, job_id=name)
        print("added", flush=True)
    elif sys.argv[1] == "feed":
        for line in sys.stdin:
            base, seconds = line.split()
            # A call without an answer may have been carried out: the next attempt is another job.
            for attempt in itertools.count():
                name = f"{base}-{attempt}"
                try:
                    queue.enqueue(rq_worker.work_on, name, float(seconds), job_id=name)
                    break
                except redis.RedisError:
                    time.sleep(0.05)
            print(f"added {name}", flush=True)
    elif sys.argv[1] == "orphans":
        for name in sys.argv[3:]:
            retry = retries(int(sys.argv[2]))
            job = queue.enqueue(rq_worker.work_on, name, 0, job_id=name, retry=retry)
            leave(connection, queue, job)
        print("added", flush=True)
    elif sys.argv[1] == "clean":
        registry = StartedJobRegistry("mails", connection=connection)
        print("ready", flush=True)
        for _ in sys.stdin:
            try:
                registry.cleanup()
            except redis.RedisError:
                pass
            print("cleaned", flush=True)
    else:
        logging.getLogger("rq.worker").setLevel(logging.ERROR)
        also = [rq.Queue(name, connection=connection) for name in os.environ.get("ALSO", "").split()]
        kind = rq.SimpleWorker if "SIMPLE" in os.environ else SlowHorses
        beat = int(os.environ.get("BEAT", 30))
        kind([queue, *also], connection=connection, name=sys.argv[2], job_monitoring_interval=beat).work(
            logging_level="ERROR", with_scheduler="SCHEDULER" in os.environ
        )
