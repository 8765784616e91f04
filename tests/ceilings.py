"""ceilings.py ROOT: a file has at most 600 lines, a host function 60, a kernel or another device function 200, its
signature included. A longer one says why: "Longer than" in the comment in front of it, or at the head of the file."""
import pathlib
import re
import subprocess
import sys

FILE, HOST, DEVICE = 600, 60, 200
root = pathlib.Path(sys.argv[1])
files = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"],
                       capture_output=True, text=True, check=True).stdout.split()
files = [f for f in files if (root / f).is_file() and not f.startswith("include/")]  # each of those is one whole API
wrong, functions = [], 0


def reason(lines, at):
    """The comment that ends just above line `at` says why what follows is long."""
    if at > 0 and lines[at - 1].rstrip().endswith("*/"):
        first = at - 1
        while first > 0 and not lines[first].lstrip().startswith("/*"):
            first -= 1
        return "Longer than" in "".join(lines[first:at])
    return False


for path in files:
    lines = (root / path).read_text().splitlines(keepends=True)
    head = "".join(lines).split("*/")[0] if lines and lines[0].startswith("/*") else ""
    if len(lines) > FILE and "Longer than" not in head:
        wrong.append(f"{path}: {len(lines)} lines, more than {FILE}")
    for at, line in enumerate(lines):
        if line.rstrip() != "{":  # clang-format: in the first column only where a function begins
            continue
        first = at - 1
        while first > 0 and re.match(r"\S|\s+\S", lines[first - 1]) and not re.match(r"[}#]|.*(\*/|;)\s*$", lines[first - 1]):
            first -= 1
        last = next(i for i in range(at, len(lines)) if lines[i].startswith("}"))
        length, functions = last - first + 1, functions + 1
        signature = "".join(lines[first:at])
        most = DEVICE if re.search(r"__global__|__device__", signature) else HOST
        if length > most and not reason(lines, first):
            name = re.search(r"(\w+)\(", re.sub(r"__\w+__(\([^)]*\)+)?", "", signature))
            wrong.append(f"{path}:{first + 1}: {name[1] if name else '?'} has {length} lines, more than {most}")
print("\n".join(wrong) if wrong else f"{len(files)} files, {functions} functions: none is too long without a reason")
sys.exit(bool(wrong))
