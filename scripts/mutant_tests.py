"""Runs a built test program against one mutant, and keeps what came of it. Used by both scripts of `make mutants`."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

# How long the tests of one mutant may take.
PATIENCE_S = 240
# How many tests of a set may fail without failing once more by themselves.
UNSTEADY_MAX = 8
PASSED = re.compile(r"test result: ok\. (\d+) passed")
FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", re.M)


def built(root, what, env=None):
    """The test programs of `cargo test WHAT`, by the name of their target."""
    command = ["cargo", "test", "--locked", *what, "--no-run", "--message-format", "json"]
    said = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True, env=env)
    messages = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    return {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}


def listed(program, folder):
    """The names of all tests of a program."""
    told = subprocess.run([program, "--list"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return [line.removesuffix(": test") for line in told.stdout.splitlines() if line.endswith(": test")]


def run(program, tests, folder, env, patience_s):
    """What the tests say, and the first that failed: `failed`, `passed`, `late` if they do not end in time,
    `empty` if there are none, or `broken` if the program ended in another way."""
    env = {**os.environ, "RUST_BACKTRACE": "0", **env}
    env.setdefault("RUST_TEST_THREADS", "16")
    ends = time.monotonic() + patience_s
    with tempfile.NamedTemporaryFile() as said:
        command = [program, "--exact", *tests]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=subprocess.DEVNULL)
        while True:
            is_over = process.poll() is not None
            told = pathlib.Path(said.name).read_text(errors="replace")
            # The first failure is enough.
            failure = FAILED.search(told)
            if failure or (not is_over and time.monotonic() > ends):
                process.kill()
                process.wait()
                return ("failed", failure.group(1)) if failure else ("late", "")
            if is_over:
                break
            time.sleep(0.1)
    passed = PASSED.search(told)
    if process.returncode != 0 or not passed:
        return "broken", ""
    return ("passed" if int(passed.group(1)) > 0 else "empty"), ""


def steady(program, name, tests, folder):
    """Those of `tests` that pass without a mutant. The others, as some do on a machine that is too busy, are named
    and left out. None if the tests do not end as tests end."""
    left = list(tests)
    while len(tests) - len(left) <= UNSTEADY_MAX:
        began = time.monotonic()
        said, test = outcome(program, left, folder, {})
        took_s = time.monotonic() - began
        print(f"{name}: {len(left)} tests, {said} {test} without a mutant, {took_s:.0f} s", flush=True)
        if said == "SURVIVES" and left:
            return left
        if said != "noticed":
            return None
        left.remove(test)
    return None


def outcome(program, tests, folder, env, patience_s=PATIENCE_S):
    """`noticed` and the test that fails, also by itself, and passes by itself without the mutant; `SURVIVES`; or
    `UNDECIDED` if the tests did not end as tests end. A busy machine makes a test fail, too: then it tells nothing,
    and the others are run again."""
    left = list(tests)
    while left and len(tests) - len(left) <= UNSTEADY_MAX:
        said, test = run(program, left, folder, env, patience_s)
        if said == "passed":
            return "SURVIVES", ""
        if said != "failed":
            return "UNDECIDED", said
        again, _ = run(program, [test], folder, env, patience_s)
        without, _ = run(program, [test], folder, {}, patience_s) if again == "failed" and env else ("passed", "")
        if again == "failed" and without == "passed":
            return "noticed", test
        if again not in ("failed", "passed"):
            return "UNDECIDED", again
        left.remove(test)
    return ("UNDECIDED", "unsteady") if left else ("SURVIVES", "")


class Journal:
    """One line for each mutant that was run, in a file if one is named."""

    def __init__(self, file):
        self.file = file
        self.lock = threading.Lock()
        self.of = {}
        if file and file.exists():
            for line in file.read_text().splitlines():
                one = json.loads(line)
                self.of[one["mutant"]] = one

    def is_open(self, mutant, number):
        """Whether round `number` is still to be run: nobody has noticed the mutant, and it was not run yet."""
        before = self.of.get(mutant)
        return before is None or (before["outcome"] != "noticed" and before["round"] < number)

    def note(self, mutant, number, outcome, by):
        with self.lock:
            one = {"mutant": mutant, "round": number, "outcome": outcome, "by": by}
            self.of[mutant] = one
            print(f"{len(self.of)} {outcome:9} {mutant} {by}", flush=True)
            if self.file:
                with self.file.open("a") as file:
                    file.write(json.dumps(one) + "\n")

    def summary(self, mutants):
        """Prints what was not noticed; 0 if everything was."""
        open_ones = [self.of[one] for one in mutants if one in self.of and self.of[one]["outcome"] != "noticed"]
        run_ones = sum(one in self.of for one in mutants)
        survivors = sum(one["outcome"] == "SURVIVES" for one in open_ones)
        print(f"{run_ones} of {len(mutants)} mutants run, {survivors} survive, {len(open_ones) - survivors} undecided")
        for one in open_ones:
            print(f"  {one['outcome']} {one['mutant']} {one['by']}")
        return 1 if open_ones else 0
