#!/usr/bin/env python3
"""Breaks one guard or comparison of the Lua scripts at a time, and runs the tests of Redis against each.

  scripts/lua_mutants.py                        every mutant (hours)
  scripts/lua_mutants.py --shard 0/20           every twentieth, from the first on
  scripts/lua_mutants.py --only session_reclaim the mutants of one script
  scripts/lua_mutants.py --list                 what would be run

A mutant that no test notices is a survivor: a test is missing, or docs/mutants.md says why none can
notice it. The scripts in the tree are not changed: the test program is built with the feature `mutants`
of lapsed-redis, which reads the changed text from the file that LAPSED_LUA_MUTANT names.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "crates/lapsed-redis/scripts"
CONDITION = re.compile(r"^(\s*)(if|elseif) (.*) then\b")
# Each comparison becomes its neighbour at the boundary, or its opposite.
FLIPS = {"<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "~=", "~=": "=="}
COMPARISON = re.compile(r"(?<= )(<=|>=|==|~=|<|>)(?= )")
# How long the tests of one mutant may take; a mutant that never ends is noticed, too.
PATIENCE_S = 240


def mutants_of(script):
    """Every change of one script: (line number, what was done, the new text)."""
    lines = script.read_text().splitlines(keepends=True)
    for at, line in enumerate(lines):
        found = CONDITION.match(line)
        if not found:
            continue
        indent, word, condition = found.groups()
        rest = line[found.end():]

        def changed(new, what):
            text = lines[:at] + [f"{indent}{word} {new} then{rest}"] + lines[at + 1:]
            return at + 1, what, "".join(text)

        yield changed("false", f"`{condition}` is never true")
        for comparison in COMPARISON.finditer(condition):
            flipped = FLIPS[comparison.group()]
            new = condition[: comparison.start()] + flipped + condition[comparison.end():]
            yield changed(new, f"`{condition}` -> `{new}`")


def filters_of(script):
    """The tests to run, in two rounds: the conformance suite, and for a survivor all of its kind."""
    name = script.stem
    if name.startswith("session"):
        return ["sessions::on_valkey"], ["session"]
    if name.startswith("inflight_adopt"):
        return ["inflight_adopt"], ["inflight", "sidekiq"]
    if name.startswith(("inflight", "queues", "requests", "once")):
        return ["inflight::on_valkey", "sessions::on_valkey"], ["inflight", "session"]
    if name.startswith("mirror"):
        return ["mirror"], ["mirror", "availability"]
    native = ["registry::on_valkey", "notes", "boundary"]
    return native, ["registry", "sessions::on", "adopt", "absence", "faults", "passes", "clock_set_back"]


def build():
    command = ["cargo", "test", "--locked", "-p", "lapsed-redis", "--features", "mutants", "--test", "all"]
    command += ["--no-run", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    tests = [m for m in messages if m.get("executable") and m["target"]["name"] == "all"]
    return tests[-1]["executable"]


def is_noticed(program, filters, mutant):
    """Whether a test fails, or none ends in time; without a mutant, none should."""
    env = dict(os.environ, RUST_BACKTRACE="0")
    if mutant:
        env["LAPSED_LUA_MUTANT"] = mutant
    env.setdefault("RUST_TEST_THREADS", "16")
    ends = time.monotonic() + PATIENCE_S
    with tempfile.NamedTemporaryFile() as said:
        process = subprocess.Popen([program, *filters], cwd=ROOT / "crates/lapsed-redis", env=env, stdout=said,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None:
            told = pathlib.Path(said.name).read_text()
            # The first failure is enough.
            if "FAILED" in told or time.monotonic() > ends:
                process.kill()
                process.wait()
                return True
            time.sleep(0.1)
        return process.returncode != 0


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shard", metavar="K/N", default="0/1")
    arguments.add_argument("--only", action="append", metavar="SCRIPT")
    arguments.add_argument("--list", action="store_true")
    arguments = arguments.parse_args()
    scripts = sorted(path for path in SCRIPTS.glob("*.lua") if not arguments.only or path.stem in arguments.only)
    mutants = [(script, *mutant) for script in scripts for mutant in mutants_of(script)]
    shard, shards = map(int, arguments.shard.split("/"))
    mutants = mutants[shard::shards]
    if arguments.list:
        for script, line, what, _ in mutants:
            print(f"{script.name}:{line}: {what}")
        print(f"{len(mutants)} mutants")
        return 0
    program, survivors = build(), []
    # On a machine that is too busy for the tests, every mutant would seem to be noticed.
    for filters in {tuple(filters_of(script)[0]) for script, *_ in mutants}:
        if is_noticed(program, filters, None):
            print(f"{' '.join(filters)} fail without a mutant")
            return 2
    for number, (script, line, what, text) in enumerate(mutants, 1):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([script.read_text(), text], file)
            file.flush()
            noticed = any(is_noticed(program, filters, file.name) for filters in filters_of(script))
        print(f"{number}/{len(mutants)} {'noticed ' if noticed else 'SURVIVES'} {script.name}:{line}: {what}", flush=True)
        if not noticed:
            survivors.append(f"{script.name}:{line}: {what}")
    print(f"{len(mutants)} mutants, {len(survivors)} survive")
    for survivor in survivors:
        print(f"  {survivor}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
