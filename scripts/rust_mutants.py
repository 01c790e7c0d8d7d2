#!/usr/bin/env python3
"""Breaks the rules and the engine of lapsed-core in one place at a time, and runs the tests against each.

  scripts/rust_mutants.py                       every mutant of rules, sweep, leader and brake
  scripts/rust_mutants.py --only sweep/brake    the mutants of the files with this in their path
  scripts/rust_mutants.py --list                what would be run
  scripts/rust_mutants.py --journal J           those that the file J names as done are not run again
  scripts/rust_mutants.py --again               with the programs of the last run, which are not built again

All mutants are in one test program: `lapsed-mutants` puts a switch into a copy of the sources at every place
that can be broken, and the environment tells the program which one is. What does not compile is left out. Each
test is then run once by itself, to learn which places it reaches; a mutant meets only the tests that reach
it, the fastest first. A mutant that no test reaches survives.

A mutant is noticed if a test fails, fails once more by itself, and passes without the mutant.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import mutant_tests

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CORE = "crates/lapsed-core/src"
FILES = [f"{CORE}/*/rules.rs", f"{CORE}/sweep.rs", f"{CORE}/sweep/*.rs", f"{CORE}/sweep/*/*.rs", f"{CORE}/leader.rs"]
# Where the tests are that need no server.
TESTS = ["-p", "lapsed-core", "-p", "lapsed-embedded", "--lib", "--test", "all"]
SWITCH = re.compile(rb"mutated::at\((\d+)\)")
# How many tests a mutant meets in one run of the program.
BATCH = 12
# How long they may take: what the slowest takes by itself, so many times, and a constant.
PATIENCE_TIMES = 6
LEAST_PATIENCE_S = 20


def copy(tree):
    """A copy of what the build needs; times are kept, so that cargo builds only what differs."""
    subprocess.run(["rm", "-rf", str(tree)], check=True)
    tree.mkdir(parents=True)
    listed = ["git", "ls-files", "-co", "--exclude-standard", "crates", "docs", "clients", "deploy", "Cargo.toml", "Cargo.lock"]
    files = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    packed = subprocess.run(["tar", "-cf", "-", "-T", "-"], cwd=ROOT, input=files, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-xf", "-", "-C", str(tree)], input=packed.stdout, check=True)
    (tree / ".tools").symlink_to(ROOT / ".tools")
    # Cargo tells crates of one name and version in one target folder apart by nothing else.
    for file in ("Cargo.toml", "Cargo.lock"):
        text = (tree / file).read_text()
        text = re.sub(r'(\[workspace\.package\]\nversion = ")[^"]*', r"\g<1>0.0.0", text)
        text = re.sub(r'(name = "lapsed[a-z-]*"\nversion = ")[^"]*', r"\g<1>0.0.0", text)
        (tree / file).write_text(text)


def with_switches(tree, files, without):
    """Puts the switches into the copy. Answers every mutant that is left, by its number."""
    for file in files:
        (tree / file).write_bytes((ROOT / file).read_bytes())
    for root in {pathlib.Path(file).parts[:3] for file in files}:
        library = pathlib.Path(*root) / "lib.rs"
        (tree / library).write_bytes((ROOT / library).read_bytes())
    tool = ["cargo", "run", "--locked", "--quiet", "--manifest-path", "mutants/Cargo.toml", "--target-dir", str(TARGET / "mutants-tool"),
            "--", str(tree)]
    told = subprocess.run([*tool, "--without", ",".join(map(str, sorted(without))), *files],
                          cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    mutants = map(json.loads, told.stdout.splitlines())
    return {one["number"]: one for one in mutants if one["number"] not in without}


def broken_by(tree, messages):
    """The numbers of the switches nearest to what the compiler refuses."""
    numbers = set()
    for message in messages:
        said = message.get("message")
        if not isinstance(said, dict) or said["level"] != "error":
            continue
        for span in said["spans"]:
            if not span["is_primary"] or not (tree / span["file_name"]).exists():
                continue
            text = (tree / span["file_name"]).read_bytes()
            found = [(abs(match.start() - span["byte_start"]), int(match.group(1))) for match in SWITCH.finditer(text)]
            if found:
                numbers.add(min(found)[1])
    return numbers


def built(tree, files):
    """The mutants that compile, and the test programs."""
    without = set()
    while True:
        mutants = with_switches(tree, files, without)
        check = ["cargo", "check", "--locked", "-p", "lapsed-core", "--message-format", "json"]
        said = subprocess.run(check, cwd=tree, stdout=subprocess.PIPE, text=True)
        if said.returncode == 0:
            break
        messages = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
        refused = broken_by(tree, messages) - without
        print(f"{len(refused)} mutants do not compile", flush=True)
        if not refused:
            sys.exit("the copy does not compile")
        without |= refused
    command = ["cargo", "test", "--locked", *TESTS, "--no-run", "--message-format", "json"]
    said = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, check=True, text=True)
    messages = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    programs = []
    for one in messages:
        if one.get("executable") and one.get("profile", {}).get("test"):
            # A name of its own, which no later build takes away.
            kept = tree / pathlib.Path(one["executable"]).name
            os.link(one["executable"], kept)
            programs.append((str(kept), str(pathlib.Path(one["manifest_path"]).parent)))
    return mutants, programs


def reached(programs, jobs):
    """For each mutant, the tests that reach it: (seconds, program, folder, test), the fastest first."""
    tests = []
    for program, folder in programs:
        tests += [(program, folder, name) for name in mutant_tests.listed(program, folder)]

    def one(test):
        program, folder, name = test
        with tempfile.NamedTemporaryFile() as file:
            began = time.monotonic()
            said, _ = mutant_tests.run(program, [name], folder, {"LAPSED_MUTANTS_REACHED": file.name}, 600)
            took = time.monotonic() - began
            numbers = {int(line) for line in pathlib.Path(file.name).read_text().split()}
        return said, (took, program, folder, name), numbers

    by_mutant, left_out = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for said, test, numbers in pool.map(one, tests):
            # Ignored tests are no tests here, and one that fails without a mutant proves nothing.
            if said == "failed":
                left_out.append(test[3])
            if said == "passed":
                for number in numbers:
                    by_mutant.setdefault(number, []).append(test)
    print(f"{len(tests)} tests; left out, because they fail without a mutant: {left_out}", flush=True)
    return {number: sorted(tests) for number, tests in by_mutant.items()}


def outcome_of(number, tests):
    """What the tests that reach a mutant say about it."""
    env = {"LAPSED_RUST_MUTANT": str(number)}
    by_program = {}
    for took_s, program, folder, name in tests:
        by_program.setdefault((program, folder), []).append((took_s, name))
    for (program, folder), timed in by_program.items():
        for start in range(0, len(timed), BATCH):
            batch = timed[start:start + BATCH]
            # The last one is the slowest; they run at the same time.
            patience_s = LEAST_PATIENCE_S + PATIENCE_TIMES * batch[-1][0]
            said, by = mutant_tests.outcome(program, [name for _, name in batch], folder, env, patience_s)
            if said == "noticed":
                return said, by
            if said == "UNDECIDED":
                return said, by
    return "SURVIVES", "" if tests else "no test reaches it"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", action="append", metavar="PATH")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--again", action="store_true")
    arguments.add_argument("--shard", metavar="K/N", default="0/1")
    arguments.add_argument("--jobs", type=int, default=4)
    arguments.add_argument("--journal", type=pathlib.Path, help="what was run before; new outcomes are added")
    arguments.add_argument("--tree", type=pathlib.Path, default=TARGET / "mutants", help="where the copy is made")
    arguments = arguments.parse_args()
    files = sorted({str(file.relative_to(ROOT)) for pattern in FILES for file in ROOT.glob(pattern) if file.name != "tests.rs"})
    known = arguments.tree / "known.json"
    if arguments.list:
        copy(arguments.tree)
        mutants, programs = with_switches(arguments.tree, files, set()), []
    elif arguments.again:
        mutants, programs, tests = json.loads(known.read_text())
        mutants, tests = ({int(number): one for number, one in them.items()} for them in (mutants, tests))
    else:
        copy(arguments.tree)
        mutants, programs = built(arguments.tree, files)
        tests = reached(programs, arguments.jobs)
        known.write_text(json.dumps([mutants, programs, tests]))
    wanted = [one for one in mutants.values()
              if not arguments.only or any(only in one["file"] for only in arguments.only)]
    shard, shards = map(int, arguments.shard.split("/"))
    wanted = wanted[shard::shards]
    names = {one["number"]: f"{one['file']}:{one['line']}:{one['column']}: {one['what']}" for one in wanted}
    if arguments.list:
        print("\n".join(names.values()))
        print(f"{len(names)} mutants, those that do not compile included")
        return 0
    journal = mutant_tests.Journal(arguments.journal)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(outcome_of, number, tests.get(number, [])): name
                for number, name in names.items() if journal.is_open(name, 0)}
        for done in concurrent.futures.as_completed(runs):
            journal.note(runs[done], 0, *done.result())
    return journal.summary(names.values())


if __name__ == "__main__":
    sys.exit(main())
