"""Dramatiq beside a test. Usage: dramatiq_worker.py add ID... | feed | work

`add` enqueues messages and prints `added`; `feed` enqueues each `ID SECONDS` that it reads from stdin and prints `added ID-ATTEMPT`. `work` runs
one worker thread: a message prints `started ID`, waits for SLOW seconds, and prints `ran ID`.

  REDIS_URL
  TIMEOUT   milliseconds without a command after which Dramatiq's own maintenance takes a worker for dead. If it is given, every
            command does maintenance
"""
import itertools
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


def say(line):
    """One write, because two threads talk."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dramatiq.actor(queue_name="mails", max_retries=0)
def work_on(name, seconds=0):
    say(f"started {name}")
    time.sleep(float(os.environ.get("SLOW", seconds)))
    say(f"ran {name}")


if sys.argv[1] == "add":
    for name in sys.argv[2:]:
        work_on.send(name)
    say("added")
elif sys.argv[1] == "feed":
    for line in sys.stdin:
        base, seconds = line.split()
        # A call without an answer may have been carried out: the next attempt is another job.
        for attempt in itertools.count():
            name = f"{base}-{attempt}"
            try:
                work_on.send(name, float(seconds))
                break
            except (redis.RedisError, dramatiq.errors.ConnectionError):
                time.sleep(0.05)
        say(f"added {name}")
else:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    say("ready")
    while True:
        time.sleep(60)
