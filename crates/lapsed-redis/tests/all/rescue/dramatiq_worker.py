"""Dramatiq beside a test. Usage: dramatiq_worker.py add ID... | work

`add` enqueues messages and prints `added`. `work` runs one worker thread: a message prints `started ID`, waits for SLOW
seconds, and prints `ran ID`.
"""
import os
import sys
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["REDIS_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="mails")
def work_on(name):
    print(f"started {name}", flush=True)
    time.sleep(float(os.environ.get("SLOW", 0)))
    print(f"ran {name}", flush=True)


if sys.argv[1] == "add":
    for name in sys.argv[2:]:
        work_on.send(name)
    print("added", flush=True)
else:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    while True:
        time.sleep(60)
