"""Celery beside a test. Usage: celery_worker.py add ID... | feed | work NAME [OPTION...] | restore

`add` sends tasks to the queue `mails` and prints `added`; PRIORITY and COUNTDOWN (seconds) hold for all of them. `work` runs a
worker: it prints `ready` when it takes tasks, a task prints `started ID PID`, waits for SLOW seconds, and prints `ran ID`.
The options go to `celery worker`. `feed` sends a task for each `ID SECONDS` that it reads from stdin and prints `added ID-ATTEMPT`. `restore`
prints `ready`, and after a line on stdin restores what nobody has acknowledged for the visibility timeout, again and again, as
each worker does from its timer. LATE=1 sets `task_acks_late`, VISIBILITY the visibility timeout in seconds, PREFIX the
`global_keyprefix`, CONTROL=0 switches the remote control off, RATE sets a rate limit.
"""
import itertools
import os
import sys
import time

from celery import Celery
from celery.signals import worker_ready
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

env = os.environ.get
app = Celery("mails", broker=os.environ["REDIS_URL"])
options = {"visibility_timeout": float(env("VISIBILITY", 3600))}
if env("PREFIX"):
    options["global_keyprefix"] = env("PREFIX")
if env("STEPS"):
    options["priority_steps"] = [int(step) for step in env("STEPS").split()]
if env("SEPARATOR"):
    options["sep"] = env("SEPARATOR")
app.conf.update(
    broker_transport_options=options,
    broker_connection_retry_on_startup=True,
    task_acks_late=env("LATE") == "1",
    task_queues=[Queue("mails", Exchange("post", type="direct"), routing_key="mail")],
    task_default_queue="mails",
    task_default_exchange="post",
    task_default_routing_key="mail",
    task_ignore_result=True,
    worker_enable_remote_control=env("CONTROL") != "0",
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_prefetch_multiplier=int(env("PREFETCH", 1)),
)


@app.task(name="work_on", rate_limit=env("RATE"))
def work_on(name, text="", seconds=0):
    print(f"started {name} {os.getpid()}", flush=True)
    time.sleep(float(env("SLOW", seconds)))
    print(f"ran {name}", flush=True)


@worker_ready.connect
def ready(**_):
    print("ready", flush=True)


if sys.argv[1] == "add":
    for name in sys.argv[2:]:
        # A text that a JSON library may write in another way.
        work_on.apply_async(
            (name, "é / \u2028 \" 1e400"),
            task_id=name,
            priority=int(env("PRIORITY", 0)),
            countdown=float(env("COUNTDOWN")) if env("COUNTDOWN") else None,
            headers={"große": "ä/\u2028", "number": 12345678901234567890123, "tiny": 1e-7, "b": 1, "a": 2},
        )
    print("added", flush=True)
elif sys.argv[1] == "feed":
    for line in sys.stdin:
        base, seconds = line.split()
        # A call without an answer may have been carried out: the next attempt is another task.
        for attempt in itertools.count():
            name = f"{base}-{attempt}"
            try:
                work_on.apply_async((name, "", float(seconds)), task_id=name, retry=False)
                break
            except (OperationalError, OSError):
                time.sleep(0.05)
        print(f"added {name}", flush=True)
elif sys.argv[1] == "restore":
    with app.connection_for_read() as connection:
        channel = connection.channel()
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            channel.qos.restore_visible(num=10, interval=1)
else:
    name, more = sys.argv[2], sys.argv[3:]
    app.worker_main(["worker", "-n", f"{name}@host", "-l", "warning", "-c", "1", *more])
