"""A consumer of a stream beside a test. Usage: streams_worker.py add ID... | work NAME

`add` adds entries and prints `added`. `work` reads the group `workers` as the consumer NAME: an entry prints `started ID`,
waits for SLOW seconds, is acknowledged, and prints `ran ID`. Every 200 ms it renews the key `alive:NAME` for 5 s, also
after Redis was away.
"""
import os
import sys
import threading
import time

import redis

connection = redis.Redis.from_url(os.environ["REDIS_URL"])


def beat(name):
    connection.set(f"alive:{name}", "1", px=5000)


def beat_on(name):
    while True:
        time.sleep(0.2)
        try:
            beat(name)
        except redis.RedisError:
            pass


if sys.argv[1] == "add":
    for name in sys.argv[2:]:
        connection.xadd("mails", {"id": name, b"\x00\xff": b"\r\n\x80"})
    print("added", flush=True)
else:
    name = sys.argv[2]
    beat(name)
    threading.Thread(target=beat_on, args=(name,), daemon=True).start()
    try:
        connection.xgroup_create("mails", "workers", id="0", mkstream=True)
    except redis.ResponseError:
        pass
    while True:
        answer = connection.xreadgroup("workers", name, {"mails": ">"}, count=1, block=200)
        for _, entries in answer.items() if isinstance(answer, dict) else answer or []:
            entries = entries[0] if entries and isinstance(entries[0], list) else entries
            for entry, fields in entries:
                job = fields[b"id"].decode()
                print(f"started {job}", flush=True)
                time.sleep(float(os.environ.get("SLOW", 0)))
                connection.xack("mails", "workers", entry)
                print(f"ran {job}", flush=True)
