"""Dramatiq's own recovery of messages whose worker is gone: `python dramatiq_peer.py REDIS_URL ORPHANS`.

Prepared with Dramatiq itself: the messages are enqueued one by one, and a process of its own fetches them as a worker does, a
thousand at a time, and is killed. Timed is the call in which a consumer that asks for a message happens to do the maintenance of
its queue. Two settings are changed, which say when that is and have no part in how long it takes: every call does the
maintenance (by default one in a thousand), and a worker is dead after a second without a heartbeat (a minute).
"""

import importlib.metadata
import sys
import time

from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker
from peer import die, in_a_child_that_dies, measure

QUEUE = "bench"
CHUNK = 1_000
DEAD_AFTER_MS = 1_000
ALWAYS = 1_000_000
NEVER = 0


def orphan(url, orphans):
    """In a child: fetches so many messages and dies with them."""
    broker = RedisBroker(url=url, maintenance_chance=NEVER)
    fetched = 0
    while fetched < orphans:
        fetched += len(broker.do_fetch(QUEUE, min(CHUNK, orphans - fetched)))
    die()


def prepare(url, orphans):
    broker = RedisBroker(url=url, maintenance_chance=NEVER)
    for number in range(orphans):
        broker.enqueue(Message(queue_name=QUEUE, actor_name="job", args=(number,), kwargs={}, options={}))
    in_a_child_that_dies(lambda: orphan(url, orphans))
    return broker


def until_dead(broker):
    """The producer's own heartbeat stops here, too."""
    newest = broker.client.zrange("dramatiq:__heartbeats__", -1, -1, withscores=True)[0][1]
    while time.time() * 1e3 <= newest + DEAD_AFTER_MS:
        time.sleep(0.05)


def main(url, orphans):
    prepared = prepare(url, orphans)
    until_dead(prepared)
    broker = RedisBroker(url=url, maintenance_chance=ALWAYS, heartbeat_timeout=DEAD_AFTER_MS)

    measure(
        importlib.metadata.version("dramatiq"),
        "RedisBroker.do_fetch(), with maintenance",
        lambda: broker.do_fetch(QUEUE, 1),
        lambda fetched: broker.client.llen(f"dramatiq:{QUEUE}") + len(fetched),
    )


main(sys.argv[1], int(sys.argv[2]))
