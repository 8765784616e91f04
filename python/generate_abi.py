"""generate_abi.py [HEADER]: include/ridge.h's version, numbers, operand slots, builders and options as Python, for
ridge/_abi.py.

    python3 python/generate_abi.py > python/ridge/_abi.py      # after a change of the header; a test compares
"""
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def defines(text):
    """#define RIDGE_X number, in order."""
    for name, value in re.findall(r"#define\s+(RIDGE_\w+)[ \t\\\n]+(0[xX][0-9a-fA-F]+|\d+)u?\b", text):
        yield name, int(value, 0)


def enums(text):
    """[(type name or None, [(name, value)])]: values count up, or are given, or are those of an earlier name."""
    known = {}
    for body, kind in re.findall(r"enum(?:\s+\w+)?\s*\{(.*?)\}\s*(\w*)", text, flags=re.S):
        members, value = [], -1
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, _, given = (part.strip() for part in item.partition("="))
            value = (known[given] if given in known else int(given, 0)) if given else value + 1
            known[name] = value
            members.append((name, value))
        yield kind or None, members


def builders(text):
    """{op: [(kind, name)]}: kind is int64, dtype, tensor or pointer."""
    found = {}
    for op, arguments in re.findall(r"RIDGE_API ridge_call ridge_(\w+)\((.*?)\);", text, flags=re.S):
        found[op] = []
        for argument in arguments.split(","):
            kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", argument, flags=re.S).groups()
            found[op].append(("pointer" if "*" in kind else kind.strip().removeprefix("ridge_").removesuffix("_t"), name))
    return found


def options(text):
    """{struct without ridge_ and _options: [(type, field)]}; a struct inside one is spread out."""
    found = {}
    for name, body in re.findall(r"typedef struct ridge_(\w+)_options \{(.*?)\}", text, flags=re.S):
        found[name] = []
        for kind, field in re.findall(r"(\w+) (\w+);", body):
            inner = found.get(kind.removeprefix("ridge_").removesuffix("_options"))
            found[name] += inner if inner else [(kind, field)]
    return found


def generate(header):
    text = without_comments(open(header, encoding="utf-8").read())
    numbers = dict(defines(text))
    lists = list(enums(text))
    constants, ops, slots = {}, {}, {}
    for kind, members in lists:
        if kind == "ridge_op":
            ops = {name[6:].lower(): value for name, value in members if name not in ("RIDGE_OP_NONE", "RIDGE_OPS")}
    names = sorted(ops, key=len, reverse=True)  # the longest first: quantize_fp8_dual before quantize_fp8
    shared = {"linear_ce": ("linear_ce_eval", "linear_ce_train"), "q8_0_repack": ("q8_0_repack", "q8_0_unpack"),
              "block_repack": ("block_repack", "block_unpack")}
    for kind, members in lists:
        if kind:
            constants.update(members)
            continue
        prefix = os.path.commonprefix([name for name, _ in members]) if len(members) > 1 else ""
        op = prefix[6:].rstrip("_").lower()
        if op not in names and op not in shared:  # limits, or slots whose names share more than the op's
            op = next((n for n in names if members[0][0].lower().startswith(f"ridge_{n}_")), None)
        if op is None or members[0][0] in ("RIDGE_MAX_DIMS", "RIDGE_Q8_0_MAX_TOKENS"):
            constants.update(members)
            continue
        for each in shared.get(op, (op,)):
            slots[each] = {name[len(f"RIDGE_{op}_"):].lower(): value for name, value in members}
    version = tuple(numbers.pop(f"RIDGE_VERSION_{part}") for part in ("MAJOR", "MINOR", "PATCH"))
    out = ['"""Made from include/ridge.h by python/generate_abi.py: do not edit."""', f"VERSION = {version}", ""]
    out += [f"{name[6:]} = {value:#x}" for name, value in numbers.items()]
    out += [f"{name[6:]} = {value}" for name, value in constants.items()]
    out += ["", "# number of each op; operand slots of each op by name", f"OPS_BY_NAME = {wrapped(ops)}", "SLOTS = {"]
    out += [f"    {op!r}: {wrapped(slots[op], 4)}," for op in ops]
    out += ["}", "", "# arguments of each builder, and fields of each option struct, as \"type name\"", "BUILDERS = {"]
    out += [f"    {op!r}: {listed(arguments)}," for op, arguments in builders(text).items()]
    out += ["}", "OPTIONS = {"]
    out += [f"    {name!r}: {listed(fields)}," for name, fields in options(text).items()]
    return "\n".join(out) + "\n}\n"


def listed(pairs):
    lines = textwrap.wrap(", ".join(f"{kind} {name}" for kind, name in pairs), 110, drop_whitespace=False)
    return "\n        ".join(repr(line) for line in lines)


def wrapped(table, indent=0):
    line, lines = " " * (indent + 4), []
    for key, value in table.items():
        item = f"{key!r}: {value}, "
        if len(line) + len(item) > 110:
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += item
    return "{\n" + "\n".join(lines + [line.rstrip()]) + "\n" + " " * indent + "}"


if __name__ == "__main__":
    sys.stdout.write(generate(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "include", "ridge.h")))
