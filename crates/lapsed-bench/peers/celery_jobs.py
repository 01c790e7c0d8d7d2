"""Tasks through Celery, from being sent until their worker is done with them: `python celery_jobs.py REDIS_URL JOBS`.

One process sends them, another is `celery worker` with its default pool of processes, one a core. Tasks are acknowledged when
they are done, as a job that must survive its worker has to be; results are not kept. Timed is from the first task's sending
until none is queued or unacknowledged.
"""

import os
import subprocess
import sys

import celery
import redis
from peer import measure, until

QUEUE = "bench"

app = celery.Celery("celery_jobs", broker=os.environ.get("BENCH_REDIS_URL"))
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)


@app.task(name="job")
def job(number):
    pass


def main(url, jobs):
    app.conf.broker_url = url
    client = redis.Redis.from_url(url)
    command = [sys.executable, "-m", "celery", "-A", "celery_jobs", "worker", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
    environment = {**os.environ, "BENCH_REDIS_URL": url, "PYTHONWARNINGS": "ignore"}
    worker = subprocess.Popen(
        command, cwd=os.path.dirname(os.path.abspath(__file__)), env=environment, stdout=subprocess.DEVNULL
    )
    left = lambda: client.llen(QUEUE) + client.hlen("unacked")
    try:
        job.apply_async((0,))
        until("the worker", lambda: left() == 0)

        def run():
            with app.producer_pool.acquire(block=True) as producer:
                for number in range(jobs):
                    job.apply_async((number,), producer=producer)
            until("all tasks done", lambda: left() == 0)

        measure(celery.__version__, "apply_async, worker with its default pool, acks late", run, lambda _: jobs - left())
    finally:
        # Its pool ends with it only if it is asked to end.
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
