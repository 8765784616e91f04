"""`python -m ridge`, and the command `ridge` of the package: the command-line tool that the wheel holds."""
import os
import pathlib
import sys


def main():
    tool = pathlib.Path(__file__).with_name("bin") / "ridge"
    if not tool.is_file():
        sys.exit(f"ridge: this package was built without the tool ({tool} is missing: its build had no jansson)")
    os.execv(tool, ["ridge", *sys.argv[1:]])


if __name__ == "__main__":
    main()
