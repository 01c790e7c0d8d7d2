"""RQ beside a test. Usage: rq_worker.py add ID... | work NAME

`add` enqueues jobs and prints `added`. `work` runs RQ's own forking worker: a job prints `started ID HORSE`, waits until
the environment's SLOW seconds are over, and prints `ran ID`. With ALSO in the environment, the worker serves that queue, too.
"""
import logging
import os
import sys
import time

import redis
import rq


def work_on(name, seconds):
    print(f"started {name} {os.getpid()}", flush=True)
    time.sleep(float(os.environ.get("SLOW", seconds)))
    print(f"ran {name}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    import rq_worker

    connection = redis.Redis.from_url(os.environ["REDIS_URL"])
    queue = rq.Queue("mails", connection=connection)
    if sys.argv[1] == "add":
        for name in sys.argv[2:]:
            queue.enqueue(rq_worker.work_on, name, 0, job_id=name)
        print("added", flush=True)
    else:
        logging.getLogger("rq.worker").setLevel(logging.ERROR)
        also = [rq.Queue(name, connection=connection) for name in os.environ.get("ALSO", "").split()]
        rq.Worker([queue, *also], connection=connection, name=sys.argv[2]).work(logging_level="ERROR")
