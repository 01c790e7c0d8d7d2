"""Dramatiq beside a test. Usage: dramatiq_worker.py add ID... | feed | work

`add` enqueues messages and prints `added`; `feed` enqueues each `ID SECONDS` that it reads from stdin and prints `added ID`. `work` runs
one worker thread: a message prints `started ID`, waits for SLOW seconds, and prints `ran ID`.

  REDIS_URL
  TIMEOUT   milliseconds without a command after which Dramatiq's own maintenance takes a worker for dead. If it is given, every
            command does maintenance
"""
import os
import sys
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

options = {}
if "TIMEOUT" in os.environ:
    options = {"heartbeat_timeout": int(os.environ["TIMEOUT"]), "maintenance_chance": 1000000}
broker = RedisBroker(url=os.environ["REDIS_URL"], **options)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="mails", max_retries=0)
def work_on(name, seconds=0):
    print(f"started {name}", flush=True)
    time.sleep(float(os.environ.get("SLOW", seconds)))
    print(f"ran {name}", flush=True)


if sys.argv[1] == "add":
    for name in sys.argv[2:]:
        work_on.send(name)
    print("added", flush=True)
elif sys.argv[1] == "feed":
    for line in sys.stdin:
        name, seconds = line.split()
        while True:
            try:
                work_on.send(name, float(seconds))
                break
            except (redis.RedisError, dramatiq.errors.ConnectionError):
                time.sleep(0.05)
        print(f"added {name}", flush=True)
else:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    print("ready", flush=True)
    while True:
        time.sleep(60)
