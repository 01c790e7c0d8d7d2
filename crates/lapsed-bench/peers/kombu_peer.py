"""kombu's own recovery of messages whose consumer is gone: `python kombu_peer.py REDIS_URL ORPHANS`.

Prepared with kombu itself: a process of its own publishes a message, gets it without acknowledging it,
and is killed. The other messages are copies of what it left behind, each under a delivery tag of its
own, because one at a time would take longer than the recovery. Timed is what kombu's event loop calls from its timer,
`maybe_restore_messages()`, with all of kombu's defaults but the visibility timeout, which says when a
message counts as abandoned and has no part in how long restoring takes.
"""

import sys
import time
import uuid

import kombu
from peer import die, in_a_child_that_dies, measure, until_abandoned

QUEUE = kombu.Queue("bench", kombu.Exchange("bench", type="direct"), routing_key="bench")
CHUNK = 1_000
VISIBILITY_S = 1


def connect(url):
    return kombu.Connection(url, transport_options={"visibility_timeout": VISIBILITY_S})


def orphan(url):
    """In a child: takes a message and dies with it."""
    with connect(url) as connection:
        channel = connection.channel()
        bound = QUEUE(channel)
        bound.declare()
        kombu.Producer(channel).publish({"number": 0}, exchange=QUEUE.exchange, routing_key="bench")
        if bound.get(no_ack=False) is None:
            return
        die()


def prepare(url, orphans):
    in_a_child_that_dies(lambda: orphan(url))
    with connect(url) as connection:
        copy(connection.channel().client, orphans)


def copy(client, orphans):
    """The one message that is there, until there are so many."""
    [(tag, message)] = client.hgetall("unacked").items()
    for start in range(1, orphans, CHUNK):
        tags = [str(uuid.uuid4()).encode() for _ in range(start, min(start + CHUNK, orphans))]
        with client.pipeline(transaction=False) as pipeline:
            pipeline.hset("unacked", mapping={new: message.replace(tag, new) for new in tags})
            pipeline.zadd("unacked_index", {new: time.time() for new in tags})
            pipeline.execute()


def main(url, orphans):
    prepare(url, orphans)
    with connect(url) as connection:
        channel = connection.channel()
        # Restoring is the task of a channel that consumes; nothing is fetched until it is polled.
        kombu.Consumer(channel, [QUEUE], callbacks=[lambda *_: None]).consume()
        until_abandoned(channel.client, orphans, VISIBILITY_S)
        recover = connection.transport.cycle.maybe_restore_messages
        recovered = lambda _: channel.client.llen("bench")
        measure(kombu.__version__, "maybe_restore_messages()", recover, recovered)


main(sys.argv[1], int(sys.argv[2]))
