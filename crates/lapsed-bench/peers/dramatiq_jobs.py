"""Messages through Dramatiq, from being sent until their worker is done with them: `python dramatiq_jobs.py REDIS_URL JOBS`.

One process sends them, and others are workers as the command `dramatiq` starts them: a process a core, eight threads each, which
are its defaults. The actor does nothing. Timed is from the first message's sending until none is left.
"""

import importlib.metadata
import logging
import os
import sys
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from peer import in_children, measure, until

QUEUE = "bench"
THREADS = 8


def actor_on(url):
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    return broker, dramatiq.actor(lambda number: None, actor_name="job", queue_name=QUEUE, broker=broker)


def work(url):
    logging.disable(logging.CRITICAL)
    broker, _ = actor_on(url)
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    while True:
        time.sleep(60)


def main(url, jobs):
    processes = os.cpu_count()
    with in_children(processes, lambda: work(url)):
        broker, job = actor_on(url)
        left = lambda: broker.client.hlen(f"dramatiq:{QUEUE}.msgs")
        job.send(0)
        until("the workers", lambda: left() == 0)

        def run():
            for number in range(jobs):
                job.send(number)
            until("all messages done", lambda: left() == 0)

        measure(
            importlib.metadata.version("dramatiq"),
            f"send, {processes} workers with {THREADS} threads",
            run,
            lambda _: jobs - left(),
        )


main(sys.argv[1], int(sys.argv[2]))
