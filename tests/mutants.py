#!/usr/bin/env python3
"""Mutation testing of the CPU code: makes one-line changes in copies of the tree and asks whether a quick test fails.

A change swaps an operator, moves a constant, negates a condition or deletes a statement, in ops/*/cpu*, cpu/, src/ and
src/math/. The objects that depend on its file are compiled (with -O1, which is fast), linked with those of an unchanged
build, and meet the tests of the parts that include the file: first `ridge test --quick` of their ops, then the unit
tests, then for shared code the tests of the tool. What no test notices "SURVIVED". Everything lies in the folder of
--folder; the tree itself is only read.

    tests/mutants.py --count 200 --seed 1 --jobs 4 --report mutants.tsv
    tests/mutants.py --again mutants.tsv        # what survived, after a test was added
"""
import argparse
import glob
import hashlib
import os
import queue
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time

FILES = ["ops/*/cpu*.c", "ops/*/cpu*.h", "cpu/*.c", "cpu/*.h", "src/*.c", "src/util.h", "src/math/*.h"]
CORE_OPS = ["multiply", "ce_combine", "q8_0_repack", "swiglu_fwd"]  # what a change of the core is tried on

SWAPS = {" < ": [" <= ", " > "], " <= ": [" < "], " > ": [" >= ", " < "], " >= ": [" > "], " == ": [" != "],
         " != ": [" == "], " && ": [" || "], " || ": [" && "], " + ": [" - "], " - ": [" + "], " * ": [" / ", " + "],
         " / ": [" * "], " % ": [" / "], " << ": [" >> "], " >> ": [" << "], " & ": [" | "], " | ": [" & "],
         " ^ ": [" | "], " += ": [" -= ", " = "], " -= ": [" += "], " |= ": [" = ", " &= "], " &= ": [" |= "],
         "++": ["--"], "--": ["++"], "true": ["false"], "false": ["true"]}
STATEMENT = re.compile(r"^\s*(?!return|break|continue|goto|case|default|static|const|struct|typedef|extern|enum|union)"
                       r"([A-Za-z_(*][^;{}=]*=[^;{}]*|[A-Za-z_][\w.>-]*\([^;{}]*\));\s*$")
DECLARATION = re.compile(r"^\s*(const |unsigned |struct )*[A-Za-z_]\w*( const)? \**(const )?\w+(\[[^]]*\])*( =|;|,)")
NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:p[+-]?\d+)?|\d+(?:\.\d*)?(?:e[+-]?\d+)?)([fuUlL]*)(?!\w)")


def code_lines(text):
    """The lines with comments and strings blanked, so that columns stay; preprocessor lines are empty."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", blank, text, flags=re.S)
    return ["" if re.match(r"\s*#", line) else line for line in text.split("\n")]


def other_numbers(number, suffix):
    """Changes of a constant: an integer by one or to zero, a float by an eighth or in its last digits."""
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", number) and "f" not in suffix:
        value = int(number, 0)
        if value in (0, 1):
            return [str(1 - value) + suffix, str(value + 1) + suffix]
        return [str(value + 1) + suffix, str(value - 1) + suffix]
    value = float.fromhex(number) if number.startswith("0x") else float(number)
    hexadecimal = lambda x: x.hex() + suffix
    return [hexadecimal(value * 1.125), hexadecimal(value * (1 + 2.0 ** -11))] if value else ["0x1p-10" + suffix]


def changes_of(line, masked):
    """Every changed form of a line."""
    forms = []
    put = lambda begin, end, new: forms.append(line[:begin] + new + line[end:])
    for old, news in SWAPS.items():
        word = re.escape(old) if not old.isalpha() else r"\b" + old + r"\b"
        for match in re.finditer(word, masked):
            for new in news:
                put(match.start(), match.end(), new)
    for match in NUMBER.finditer(masked):
        for new in other_numbers(*match.groups()):
            put(match.start(), match.end(), new)
    for match in re.finditer(r"\bif \(|\bwhile \(", masked):
        put(match.end(), match.end(), "!")  # the first term alone
    for match in re.finditer(r"(?<=[ (!&|])!(?=[A-Za-z_(])", masked):
        put(match.start(), match.end(), "")
    if STATEMENT.match(masked) and not DECLARATION.match(masked):
        forms.append(re.match(r"\s*", line).group(0) + ";")
    return forms


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options)


class Base:
    """The unchanged build: its objects, what each depends on, and how each program is linked."""

    def __init__(self, root, folder, jobs):
        self.root, self.build = root, os.path.join(folder, "build")
        subprocess.run(["cmake", "-S", root, "-B", self.build, "-G", "Ninja", "-DRIDGE_CUDA=OFF", "-DRIDGE_WERROR=OFF",
                        "-DRIDGE_COMMIT=mutant"], check=True, stdout=subprocess.DEVNULL)
        targets = run(["ninja", "-C", self.build, "-t", "targets", "all"]).stdout
        self.units = sorted(set(re.findall(r"^(tests/test_(?!io|gguf|measure)\w+): ", targets, re.M)))
        if subprocess.run(["ninja", "-C", self.build, "-j%d" % jobs, "ridge", *self.units],
                          stdout=subprocess.DEVNULL).returncode:
            sys.exit("mutants: the unchanged tree does not build")
        self.compile, self.link, self.users = {}, {}, {}
        for line in run(["ninja", "-C", self.build, "-t", "commands", "ridge", *self.units]).stdout.splitlines():
            words = shlex.split(line)
            out = words[words.index("-o") + 1] if "-o" in words else ""
            if " -c " in line and out.endswith(".o"):
                self.compile[out] = line
            elif out:
                self.link[out] = line
        for block in run(["ninja", "-C", self.build, "-t", "deps"]).stdout.split("\n\n"):
            name, _, deps = block.strip().partition(":")
            for path in re.findall(r"^    (.*)$", deps, re.M):
                path = os.path.relpath(os.path.join(self.build, path), root)
                if not path.startswith("..") and name in self.compile:
                    self.users.setdefault(path, []).append(name)


class Worker:
    """A copy of the sources, and of the objects and programs that a change is part of."""

    def __init__(self, base, at):
        self.base, self.root, self.build, self.original = base, os.path.join(at, "tree"), os.path.join(at, "build"), {}
        shutil.rmtree(at, ignore_errors=True)
        skipped = lambda folder, names: [n for n in names if folder == base.root and n.startswith(("build", "."))]
        shutil.copytree(base.root, self.root, symlinks=True, ignore=skipped)
        os.makedirs(self.build)

    def compile(self, name):
        """The bytes of an object of the sources as they are here; None where they do not compile."""
        out = os.path.join(self.build, name.replace("/", "_"))
        command = self.base.compile[name].replace("-o " + name, "-o " + out).replace("-MF " + name, "-MF " + out)
        command = re.sub(r"-O[23]\b", "-O1", command).replace("-fschedule-insns -fsched-pressure", "")
        command = command.replace("ccache ", "").replace(self.base.root + "/", self.root + "/")
        command = command.replace("-I" + self.base.root + " ", "-I" + self.root + " ")
        # Sources that CMake makes, and paths relative to the build, stay where they are.
        command = command.replace(os.path.join(self.root, os.path.relpath(self.base.build, self.base.root)), self.base.build)
        if subprocess.run(command, shell=True, cwd=self.base.build, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode:
            return None
        with open(out, "rb") as file:
            return hashlib.sha256(file.read()).digest()

    def change(self, file):
        """Compiles what depends on the file: the verdict, or None where there is something to test."""
        users = self.base.users.get(file, [])
        with open(os.path.join(self.root, file)) as changed, open(os.path.join(self.base.root, file)) as unchanged:
            text, old = changed.read(), unchanged.read()
        for name in users:
            if name not in self.original:
                with open(os.path.join(self.root, file), "w") as source:
                    source.write(old)
                self.original[name] = self.compile(name)
                with open(os.path.join(self.root, file), "w") as source:
                    source.write(text)
        new = [self.compile(name) for name in users]
        self.changed = users
        return "invalid" if None in new else "same" if new == [self.original[name] for name in users] else None

    def make(self, program):
        """Links a program of the changed objects, which stand before the archives, and of the unchanged build."""
        out, extra = os.path.join(self.build, os.path.basename(program)), []
        command = self.base.link[program].replace("-o " + program + " ", "-o " + out + " ")
        for name in self.changed:
            mine = os.path.join(self.build, name.replace("/", "_"))
            if " " + name + " " in command:
                command = command.replace(" " + name + " ", " " + mine + " ")
            elif "ridge_objects.dir" in name or "/simd/" in name:
                extra.append(mine)
        command = command.replace("-o " + out + " ", " ".join(extra) + " -o " + out + " ")
        return out if subprocess.run(command, shell=True, cwd=self.base.build, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL).returncode == 0 else None


class Tests:
    """What each source file is tested by, the fastest first, with the processor time that each test takes."""

    def __init__(self, base):
        self.base, self.seconds, self.families, self.includes = base, {}, {}, {}
        names = run([os.path.join(base.build, "ridge"), "ops", "--names"]).stdout.split()
        for path in glob.glob(os.path.join(base.root, "ops/*/op*.c")):
            text = open(path).read()
            self.families.setdefault(path.split("/")[-2], []).extend(name for name in names if '"%s"' % name in text)
        for pattern in FILES + ["ops/*/*.h", "src/*.h"]:
            for path in glob.glob(os.path.join(base.root, pattern)):
                self.includes[os.path.relpath(path, base.root)] = re.findall(r'#include "([^"]+)"', open(path).read())

    def families_of(self, file):
        """The families with a CPU file that includes this one, by whatever way, or that is it."""
        reached, found = {file}, set()
        while True:
            more = {user for user, used in self.includes.items() for name in used
                    if name in reached or os.path.join(os.path.dirname(user), name) in reached} - reached
            if not more:
                break
            reached |= more
        for name in reached:
            if name.startswith("ops/"):
                found.add(name.split("/")[1])
        return found

    def ops_of(self, file):
        return sorted({op for family in self.families_of(file) for op in self.families.get(family, [])})

    def all_of(self, file):
        """(name, program, arguments): the tool's first, then unit tests, then what tests the tool."""
        ops = self.ops_of(file) or CORE_OPS
        fastest = lambda tests: sorted(tests, key=lambda test: self.seconds.get(test[0]) or 0)
        yield from fastest([(op, "ridge", ["test", op, "--quick", "--quiet", "--device", "cpu"]) for op in ops])
        yield from fastest([(unit, unit, []) for unit in self.base.units])
        if file.startswith(("src/", "cpu/")) and not file.startswith("src/math/"):
            yield "cli", "ridge", os.path.join(self.base.root, "tests/cli.sh")

    def passes(self, name, program, arguments, folder):
        """Runs a test, up to a limit of processor time; the first line that says FAIL ends it."""
        limit = int(10 + 4 * self.seconds.get(name, 100))
        script = isinstance(arguments, str)
        command = ["sh", arguments, program] if script else ["stdbuf", "-oL", program, *arguments]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, errors="replace",
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)))
        timer = threading.Timer(20 * limit, process.kill)
        timer.start()
        failed = False
        for line in process.stdout:
            if line.startswith("FAIL") or "[  FAILED  ]" in line:
                failed = True
                process.kill()
                break
        process.stdout.close()
        failed = process.wait() != 0 or failed
        timer.cancel()
        return not failed, time.monotonic() - start

    def measure(self, jobs):
        """How long every test takes on the unchanged tree; what does not pass there is left out."""
        todo = queue.Queue()
        for test in {test[0]: test for file in ("src/math/exact.h", "src/run.c") for test in self.all_of(file)}.values():
            todo.put(test)

        def work():
            while True:
                try:
                    name, program, arguments = todo.get_nowait()
                except queue.Empty:
                    return
                good, seconds = self.passes(name, os.path.join(self.base.build, program), arguments, self.base.build)
                self.seconds[name] = seconds if good else None
                if not good:
                    print("left out: %s does not pass on the unchanged tree" % name, flush=True)

        in_parallel([work] * jobs)

    def judge(self, worker, file):
        """The name of the test that notices, "" for none, None where the change does not link."""
        made = {}
        for name, program, arguments in self.all_of(file):
            if self.seconds.get(name) is None:
                continue
            if program not in made:
                made[program] = worker.make(program)
            if made[program] is None:
                return None
            if not self.passes(name, made[program], arguments, worker.build)[0]:
                return name
        return ""


def in_parallel(works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def draw(random_source, root):
    """(file, line number, changed line): each line of code that can be changed is as likely as the others."""
    lines = []
    for pattern in FILES:
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            with open(path) as file:
                text = file.read()
            for number, (line, masked) in enumerate(zip(text.split("\n"), code_lines(text))):
                forms = changes_of(line, masked)
                if forms:
                    lines.append((os.path.relpath(path, root), number, forms))
    print("%d lines can be changed, %d changes" % (len(lines), sum(len(forms) for _, _, forms in lines)), flush=True)
    while True:
        file, number, forms = random_source.choice(lines)
        yield file, number, random_source.choice(forms)


def again(path, root):
    """The survivors of a report, found by the text of the line that they change."""
    for record in open(path):
        verdict, _, file, number, old, new = record.rstrip("\n").split("\t")[:6]
        if verdict != "SURVIVED":
            continue
        lines = open(os.path.join(root, file)).read().split("\n")
        found = sorted((i for i, line in enumerate(lines) if line == old), key=lambda i: abs(i - int(number) + 1))
        if found:
            yield file, found[0], new
        else:
            print("GONE     %s:%s: %s" % (file, number, old.strip()))


def try_one(worker, tests, file, number, new):
    """Verdict and the test that noticed."""
    path = os.path.join(worker.root, file)
    with open(path) as source:
        text = source.read()
    lines = text.split("\n")
    lines[number] = new
    try:
        with open(path, "w") as source:
            source.write("\n".join(lines))
        verdict = worker.change(file)
        if verdict:
            return verdict, ""
        noticed = tests.judge(worker, file)
        return ("invalid", "") if noticed is None else ("caught", noticed) if noticed else ("SURVIVED", "")
    finally:
        with open(path, "w") as source:
            source.write(text)


class Run:
    """Changes that workers take, and what became of them."""

    def __init__(self, options, root, changes):
        self.options, self.root, self.changes, self.lock = options, root, changes, threading.Lock()
        self.report = open(options.report, "a") if options.report else None
        self.count = {"caught": 0, "SURVIVED": 0, "same": 0, "invalid": 0}
        self.begin = time.monotonic()

    def take(self):
        with self.lock:
            done = self.count["caught"] + self.count["SURVIVED"]
            late = self.options.seconds and time.monotonic() - self.begin > self.options.seconds
            return None if late or (not self.options.again and done >= self.options.count) else next(self.changes, None)

    def put(self, change, verdict, noticed):
        file, number, new = change
        old = open(os.path.join(self.root, file)).read().split("\n")[number]
        with self.lock:
            self.count[verdict] += 1
            if verdict in ("caught", "SURVIVED"):
                print("%-8s %s:%d: %s  ->  %s  %s" % (verdict, file, number + 1, old.strip(), new.strip(), noticed), flush=True)
                if self.report:
                    self.report.write("\t".join([verdict, noticed, file, str(number + 1), old, new]) + "\n")
                    self.report.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="changes that compile to other code")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="changes at a time")
    parser.add_argument("--seconds", type=int, default=0, help="no new change after so many; 0: no limit")
    parser.add_argument("--again", metavar="FILE", help="what survived in a report, instead of random changes")
    parser.add_argument("--report", metavar="FILE", help="a line is added for each change: verdict, test, file, line, old, new")
    parser.add_argument("--folder", default="build/mutants", help="where it works (default: %(default)s)")
    options = parser.parse_args()
    root, folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.abspath(options.folder)
    base = Base(root, folder, options.jobs)
    tests = Tests(base)
    tests.measure(options.jobs)
    todo = Run(options, root, again(options.again, root) if options.again else draw(random.Random(options.seed), root))

    def work(at):
        worker = Worker(base, at)
        for change in iter(todo.take, None):
            todo.put(change, *try_one(worker, tests, *change))

    in_parallel([lambda at=os.path.join(folder, "worker%d" % i): work(at) for i in range(options.jobs)])
    count = todo.count
    print("%d changes: %d caught, %d survived; %d more compile to the same program, %d not at all" %
          (count["caught"] + count["SURVIVED"], count["caught"], count["SURVIVED"], count["same"], count["invalid"]))


if __name__ == "__main__":
    main()
