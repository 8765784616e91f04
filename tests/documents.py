"""documents.py ROOT RIDGE: every path and every `make` and `ridge` verb that a document names in backticks exists,
and the manual page has the options of the verbs."""
import pathlib
import re
import subprocess
import sys

root, ridge = pathlib.Path(sys.argv[1]), sys.argv[2]
makefile = (root / "Makefile").read_text()
verbs = set(re.findall(r"^  (\w+) ", subprocess.run([ridge, "help"], capture_output=True, text=True).stdout, re.M)) | {"help"}
targets = set(re.findall(r"^## (\w+):", makefile, re.M))
folders = {p.name for p in root.iterdir() if p.is_dir()}
bad = []
for document in [*root.glob("*.md"), *root.glob("docs/*.md")]:
    for text in re.findall(r"`([^`\n]+)`", document.read_text()):
        words = text.split()
        if words[0] == "make" and len(words) > 1 and "=" not in words[1] and words[1] not in targets:
            bad.append(f"{document.name}: there is no `{text}`")
        if words[0] in ("ridge", "build/ridge") and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]) and words[1] not in verbs:
            bad.append(f"{document.name}: there is no `{text}`")
        path = words[0].rstrip(":")
        if re.fullmatch(r"[\w.]+(/[\w.\-]+)+/?", path) and path.split("/")[0] in folders and not path.startswith("build/"):
            if not (root / path).exists():
                bad.append(f"{document.name}: there is no {path}")
manual = set(re.findall(r"--[a-z-]+[a-z]", (root / "man/ridge.1").read_text().replace("\\-", "-")))
flags = {flag for verb in verbs - {"help"} for flag in
         re.findall(r"^ +(?:-\S, +)?(--[a-z-]+)", subprocess.run([ridge, "help", verb], capture_output=True, text=True).stdout, re.M)}
bad += [f"ridge.1: {flag} is not in it" for flag in flags - manual - {"--usage"}]
bad += [f"ridge.1: no verb has {flag}" for flag in manual - flags]
print("\n".join(bad) or "documents: every path, verb and option exists")
sys.exit(bool(bad))
