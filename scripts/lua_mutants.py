#!/usr/bin/env python3
"""Breaks one guard or comparison of the Lua scripts at a time, and runs the tests of Redis against each.

  scripts/lua_mutants.py                        every mutant (hours)
  scripts/lua_mutants.py --shard 0/20           every twentieth, from the first on
  scripts/lua_mutants.py --only session_reclaim the mutants of one script, or of a folder (rescue/bullmq)
  scripts/lua_mutants.py --list                 what would be run
  scripts/lua_mutants.py --jobs 6 --journal J   six at a time; those that the file J names as done are not run again

A mutant is noticed if a test fails, fails once more by itself, and passes without the mutant. A mutant that no test notices is a survivor: a test is missing, or
docs/mutants.md says why none can notice it. Tests that do not end in time prove nothing, because a busy
machine looks the same: such a mutant is listed by itself, and is to be run again or looked at. Before the
mutants, every set of tests is run without one; it must pass and contain a test.

The scripts in the tree are not changed: the test program is built with the feature `mutants` of
lapsed-redis, which reads the changed text from the file that LAPSED_LUA_MUTANT names.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile

import mutant_tests

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


def modules_of(script):
    """The test modules to run, in two rounds: the nearest ones, and for a survivor the others of its kind."""
    name, folders = script.stem, script.relative_to(CRATE).parts
    if "library" in folders:
        return ["functions", "inflight_functions"], ["functions_versions", "languages", "absence", "clock_set_back"]
    if "rescue" in folders:
        near = [f"rescue::{folders[-2]}"]
        return near, ["rescue::drift", "rescue::faults", "rescue::own_recovery", "rescue::delays", "rescue::classes",
                      "rescue::brake", "rescue::whereabouts", "rescue::steady", "boundary_of_others"]
    if name.startswith("rescue"):
        return ["rescue::streams", "rescue::resque"], ["rescue::bullmq", "rescue::asynq", "rescue::drift", "rescue::faults",
                                                       "rescue::brake", "boundary_of_others"]
    if name.startswith("session"):
        return ["sessions::on_valkey", "boundary"], ["sessions_adopt", "sessions_faults", "sessions_types",
                                                     "sessions_migrate", "boundary_of_others"]
    if name.startswith("inflight_adopt"):
        near = ["inflight_adopt", "inflight_adopt_letters", "inflight_adopt_dead_set", "boundary_of_others"]
        return near, ["inflight_adopt_observe", "inflight_adopt_faults", "inflight_adopt_sidekiq", "inflight_adopt_log",
                      "sidekiq", "brake_of_jobs", "suspects_ahead"]
    if name.startswith(("inflight", "queues", "requests", "once")):
        return ["inflight::on_valkey", "boundary"], ["sessions::on_valkey", "inflight_faults", "inflight_queues", "inflight_index",
                                                     "inflight_functions", "inflight_together", "inflight_old_receipts",
                                                     "inflight_child", "brake_of_jobs", "registry::on_redis_in_shards"]
    if name.startswith("mirror"):
        near = ["mirror", "availability::on_valkey"]
        return near, ["mirror_available", "mirror_faults", "mirror_listen", "mirror_model", "mirror_reads", "mirror_together"]
    native = ["registry::on_valkey", "notes", "boundary"]
    others = ["adopt", "adopt_observe", "absence", "clock_set_back", "passes", "faults", "boundary_of_others",
              "many_ended_owners", "old_receipts"]
    if not name.startswith("registry"):
        others += ["sessions::on_valkey", "inflight::on_valkey", "registry::on_redis_in_shards"]
    return native, others


def build():
    return mutant_tests.built(ROOT, ["-p", "lapsed-redis", "--features", "mutants", "--test", "all"])["all"]


def outcome_of(program, tests, script, text):
    """What one set of tests says about one mutant."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([script.read_text(), text], file)
        file.flush()
        return mutant_tests.outcome(program, tests, CRATE, {"LAPSED_LUA_MUTANT": file.name})


def tests_of(program, sets):
    """For each set of modules, those of its tests that pass without a mutant; None if a set proves nothing."""
    listed, steady = mutant_tests.listed(program, CRATE), {}
    for modules in sorted(sets):
        tests = [test for test in listed if any(test.startswith(f"{module}::") for module in modules)]
        steady[modules] = mutant_tests.steady(program, " ".join(modules), tests, CRATE)
        if steady[modules] is None:
            return None
    return steady


def chosen(arguments):
    """The mutants to run, in the order of `--only`."""
    wanted = []
    for only in arguments.only or [""]:
        for one in scripts():
            folder = name_of(one).removesuffix(".lua").rsplit("/", 1)[0]
            if one not in wanted and (only == one.stem or only in folder):
                wanted.append(one)
    mutants = [(script, *mutant) for script in wanted for mutant in mutants_of(script)]
    shard, shards = map(int, arguments.shard.split("/"))
    return mutants[shard::shards]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shard", metavar="K/N", default="0/1")
    arguments.add_argument("--only", action="append", metavar="SCRIPT")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--jobs", type=int, default=4)
    arguments.add_argument("--journal", type=pathlib.Path, help="what was run before; new outcomes are added")
    arguments.add_argument("--nearest-only", action="store_true", help="leave out the second round")
    arguments.add_argument("--program", help="the test program, if it is built already")
    arguments = arguments.parse_args()
    mutants = chosen(arguments)
    if arguments.list:
        for script, line, what, _ in mutants:
            print(f"{name_of(script)}:{line}: {what}")
        print(f"{len(mutants)} mutants")
        return 0
    program = arguments.program or build()
    journal = mutant_tests.Journal(arguments.journal)
    rounds = 1 if arguments.nearest_only else 2
    for number in range(rounds):
        left = [mutant for mutant in mutants
                if journal.is_open(f"{name_of(mutant[0])}:{mutant[1]}: {mutant[2]}", number)]
        tests = tests_of(program, {tuple(modules_of(script)[number]) for script, *_ in left})
        if tests is None:
            return 2
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            runs = {pool.submit(outcome_of, program, tests[tuple(modules_of(script)[number])], script, text):
                    f"{name_of(script)}:{line}: {what}" for script, line, what, text in left}
            for done in concurrent.futures.as_completed(runs):
                journal.note(runs[done], number, *done.result())
    return journal.summary([f"{name_of(script)}:{line}: {what}" for script, line, what, _ in mutants])


if __name__ == "__main__":
    sys.exit(main())
