"""What the programs of the peers share: a worker that dies, and how a measured recovery is told.

A program says its version and what it will call on stdout, waits for a line on stdin, recovers, says the result.
"""

import contextlib
import json
import os
import signal
import sys
import time


def say(what):
    print(json.dumps(what), flush=True)


def die():
    """Ends this process as `kill -9` would."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child_that_dies(orphan):
    """Runs `orphan` in a process of its own, which must end by `die`."""
    child = os.fork()
    if child == 0:
        orphan()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("the worker did not die with its jobs")


@contextlib.contextmanager
def in_children(count, work):
    """Runs `work` in so many processes of their own, until the block ends."""
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(1)
        children.append(child)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def until(what, is_so, limit_s=300):
    """Waits until `is_so()`."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {limit_s} s")
        time.sleep(0.005)


def measure(version, call, recover, recovered):
    """`recover` is timed; `recovered` says how many jobs are back, given what `recover` returned."""
    say({"version": version, "call": call})
    sys.stdin.readline()
    began = time.perf_counter()
    result = recover()
    took = time.perf_counter() - began
    say({"took_ms": took * 1e3, "recovered": recovered(result)})


def until_abandoned(client, orphans, age_s):
    """Waits until so many messages of kombu's transport are older than the visibility timeout `age_s`."""
    deadline = time.monotonic() + 120
    while client.zcount("unacked_index", 0, time.time() - age_s - 0.1) < orphans:
        if time.monotonic() > deadline:
            raise SystemExit(f"not {orphans} messages abandoned: {client.zcard('unacked_index')}")
        time.sleep(0.05)
