#!/usr/bin/env python3
"""Breaks one guard or comparison of the Lua scripts at a time, and runs the tests of Redis against each.

  scripts/lua_mutants.py                        every mutant (hours)
  scripts/lua_mutants.py --shard 0/20           every twentieth, from the first on
  scripts/lua_mutants.py --only session_reclaim the mutants of one script, or of a folder (rescue/bullmq)
  scripts/lua_mutants.py --list                 what would be run

A mutant is noticed if a test fails. A mutant that no test notices is a survivor: a test is missing, or
docs/mutants.md says why none can notice it. Tests that do not end in time prove nothing, because a busy
machine looks the same: such a mutant is listed by itself, and is to be run again or looked at. Before the
mutants, every set of tests is run without one; it must pass and contain a test.

The scripts in the tree are not changed: the test program is built with the feature `mutants` of
lapsed-redis, which reads the changed text from the file that LAPSED_LUA_MUTANT names.
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
CRATE = ROOT / "crates/lapsed-redis"
# The condition of each: what ends it, and what makes the branch or the loop never happen again.
CONDITIONS = [
    (re.compile(r"\b(?:if|elseif)\b(.*?)\bthen\b", re.S), "false"),
    (re.compile(r"\bwhile\b(.*?)\bdo\b", re.S), "false"),
    (re.compile(r"\buntil\b(.*?)$", re.M), "true"),
]
# Each comparison becomes its neighbour at the boundary, or its opposite.
FLIPS = {"<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "~=", "~=": "=="}
COMPARISON = re.compile(r"(?<=\s)(<=|>=|==|~=|<|>)(?=\s)")
# What is no code: comments and strings. Long brackets are not used in the scripts.
NO_CODE = re.compile(r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"")
# How long the tests of one mutant may take at least, and as a multiple of what they take without one.
PATIENCE_S = 240
PATIENCE_TIMES = 4
RAN = re.compile(r"test result: ok\. (\d+) passed")


def scripts():
    """Every script, by its path below the crate."""
    return sorted([*CRATE.glob("scripts/**/*.lua"), *CRATE.glob("src/**/*.lua")])


def name_of(script):
    return str(script.relative_to(CRATE))


def mutants_of(script):
    """Every change of one script: (line number, what was done, the new text)."""
    text = script.read_text()
    code = NO_CODE.sub(lambda found: " " * len(found.group()), text)

    def changed(start, end, new, what):
        return text.count("\n", 0, start) + 1, what, text[:start] + new + text[end:]

    found = []
    for condition, never in CONDITIONS:
        for match in condition.finditer(code):
            start, end = match.span(1)
            words = " ".join(text[start:end].split())
            if words not in ("true", "false"):
                found.append(changed(start, end, f" {never} ", f"`{words}` is {never}"))
    # Not only those in conditions: a guard may be a value that is returned, or kept for later.
    for match in COMPARISON.finditer(code):
        start, end = match.span()
        line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)]
        column = start - text.rfind("\n", 0, start) - 1
        new = FLIPS[match.group()]
        what = f"`{line.strip()}`: `{match.group()}` became `{new}` in column {column + 1}"
        found.append(changed(start, end, new, what))
    return sorted(found, key=lambda mutant: mutant[0])


def filters_of(script):
    """The tests to run, in two rounds: the nearest ones, and for a survivor all of its kind."""
    name, folders = script.stem, script.relative_to(CRATE).parts
    if "library" in folders:
        return ["functions"], ["functions", "languages", "inflight::on_valkey", "registry::on_valkey"]
    if "rescue" in folders:
        return [f"rescue::{folders[-2]}"], ["rescue", "boundary", "sidekiq"]
    if name.startswith("rescue"):
        return ["rescue"], ["rescue", "boundary", "inflight_adopt", "sidekiq"]
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


def run(program, filters, mutant, patience_s):
    """What the tests say: `failed`, `passed`, `late` if they do not end in time, `empty` if there are none,
    or `broken` if the program ended in another way."""
    env = dict(os.environ, RUST_BACKTRACE="0")
    env.pop("LAPSED_LUA_MUTANT", None)
    if mutant:
        env["LAPSED_LUA_MUTANT"] = mutant
    env.setdefault("RUST_TEST_THREADS", "16")
    ends = time.monotonic() + patience_s
    with tempfile.NamedTemporaryFile() as said:
        process = subprocess.Popen([program, *filters], cwd=CRATE, env=env, stdout=said, stderr=subprocess.DEVNULL)
        while True:
            is_over = process.poll() is not None
            told = pathlib.Path(said.name).read_text(errors="replace")
            # The first failure is enough.
            if "... FAILED" in told:
                process.kill()
                process.wait()
                return "failed"
            if is_over:
                break
            if time.monotonic() > ends:
                process.kill()
                process.wait()
                return "late"
            time.sleep(0.1)
    passed = RAN.search(told)
    if process.returncode != 0 or not passed:
        return "broken"
    return "passed" if int(passed.group(1)) > 0 else "empty"


def baselines(program, sets):
    """How long each set of tests takes without a mutant; None if one of them proves nothing."""
    took = {}
    for filters in sorted(sets):
        began = time.monotonic()
        said = run(program, filters, None, 20 * PATIENCE_S)
        took[filters] = time.monotonic() - began
        if said != "passed":
            print(f"{' '.join(filters)}: {said} without a mutant")
            return None
    return took


def outcome_of(program, script, file, took):
    """`noticed`, `SURVIVES`, or `UNDECIDED` if a round did not end as tests end."""
    undecided = False
    for filters in map(tuple, filters_of(script)):
        said = run(program, filters, file, max(PATIENCE_S, PATIENCE_TIMES * took[filters]))
        if said == "failed":
            return "noticed"
        undecided = undecided or said != "passed"
    return "UNDECIDED" if undecided else "SURVIVES"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shard", metavar="K/N", default="0/1")
    arguments.add_argument("--only", action="append", metavar="SCRIPT")
    arguments.add_argument("--list", action="store_true")
    arguments = arguments.parse_args()
    wanted = [one for one in scripts()
              if not arguments.only or any(only == one.stem or only in name_of(one).removesuffix(".lua").rsplit("/", 1)[0]
                                           for only in arguments.only)]
    mutants = [(script, *mutant) for script in wanted for mutant in mutants_of(script)]
    shard, shards = map(int, arguments.shard.split("/"))
    mutants = mutants[shard::shards]
    if arguments.list:
        for script, line, what, _ in mutants:
            print(f"{name_of(script)}:{line}: {what}")
        print(f"{len(mutants)} mutants")
        return 0
    program = build()
    took = baselines(program, {tuple(filters) for script, *_ in mutants for filters in filters_of(script)})
    if took is None:
        return 2
    by_outcome = {"noticed": [], "SURVIVES": [], "UNDECIDED": []}
    for number, (script, line, what, text) in enumerate(mutants, 1):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([script.read_text(), text], file)
            file.flush()
            outcome = outcome_of(program, script, file.name, took)
        by_outcome[outcome].append(f"{name_of(script)}:{line}: {what}")
        print(f"{number}/{len(mutants)} {outcome:9} {by_outcome[outcome][-1]}", flush=True)
    survivors, undecided = by_outcome["SURVIVES"], by_outcome["UNDECIDED"]
    print(f"{len(mutants)} mutants, {len(survivors)} survive, {len(undecided)} undecided")
    for outcome in ("SURVIVES", "UNDECIDED"):
        for mutant in by_outcome[outcome]:
            print(f"  {outcome} {mutant}")
    return 1 if survivors or undecided else 0


if __name__ == "__main__":
    sys.exit(main())
