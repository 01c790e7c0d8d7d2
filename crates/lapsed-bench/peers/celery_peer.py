"""Celery's own recovery of tasks whose worker is gone: `python celery_peer.py REDIS_URL ORPHANS`.

Prepared with Celery itself: a process of its own binds its remote control as a worker does, takes a task without acknowledging it,
and is killed. The other tasks are copies of what it left behind, each with an id and a delivery tag of its own, because one at a
time would take longer than the recovery. Timed is what the event loop of a worker calls from its timer,
`maybe_restore_messages()`, with all defaults but the visibility timeout, which says when a task counts as abandoned and has no
part in how long restoring takes.
"""

import sys
import time
import uuid

import celery
import kombu
from peer import die, in_a_child_that_dies, measure, until_abandoned

QUEUE = "bench"
CHUNK = 1_000
VISIBILITY_S = 1


def application(url):
    app = celery.Celery("bench", broker=url)
    app.conf.update(
        broker_transport_options={"visibility_timeout": VISIBILITY_S},
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_ignore_result=True,
    )
    return app


def bound(app, channel):
    return app.amqp.queues[QUEUE](channel)


def orphan(app, task):
    """In a child: takes the task and dies with it."""
    app.send_task("job", (0,), task_id=task)
    with app.connection_for_read() as connection:
        channel = connection.channel()
        app.control.mailbox.Node("gone@bench", channel=channel).listen(callback=lambda *_: None)
        queue = bound(app, channel)
        queue.declare()
        if queue.get(no_ack=False) is None:
            return
        die()


def prepare(app, orphans):
    task = str(uuid.uuid4())
    in_a_child_that_dies(lambda: orphan(app, task))
    with app.connection_for_read() as connection:
        copy(connection.channel().client, task.encode(), orphans)


def copy(client, task, orphans):
    """The one task that is there, until there are so many."""
    [(tag, message)] = client.hgetall("unacked").items()

    def other(new):
        return message.replace(tag, new).replace(task, str(uuid.uuid4()).encode())

    for start in range(1, orphans, CHUNK):
        tags = [str(uuid.uuid4()).encode() for _ in range(start, min(start + CHUNK, orphans))]
        with client.pipeline(transaction=False) as pipeline:
            pipeline.hset("unacked", mapping={new: other(new) for new in tags})
            pipeline.zadd("unacked_index", {new: time.time() for new in tags})
            pipeline.execute()


def main(url, orphans):
    app = application(url)
    prepare(app, orphans)
    with app.connection_for_read() as connection:
        channel = connection.channel()
        # Restoring is the task of a channel that consumes; nothing is fetched until it is polled.
        kombu.Consumer(channel, [bound(app, channel)], callbacks=[lambda *_: None]).consume()
        until_abandoned(channel.client, orphans, VISIBILITY_S)
        recover = connection.transport.cycle.maybe_restore_messages
        recovered = lambda _: channel.client.llen(QUEUE)
        measure(celery.__version__, "maybe_restore_messages()", recover, recovered)


main(sys.argv[1], int(sys.argv[2]))
