"""Runs `pip install` with these arguments, and says every few seconds what it is at: pip is silent, or says everything.

.venv/bin/python .ci/install.py --editable '.[dev,bench]'
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time

SAY_EVERY_S = 10.0
"""Where the output is no terminal, and so no line can be written over."""
STEPS = (
    (re.compile(r"Collecting ([\w.-]+)"), "finding {} and what it needs"),
    (re.compile(r"\s*Downloading (\S+?)-\d\S*\.(?:whl|tar\.gz) (\([\d.]+ [MG]B\))"), "downloading {} {}"),
    (re.compile(r"\s*Building (?:wheel|editable) for (\S+)"), "building {}"),
    (re.compile(r"Installing collected packages: (.*)"), "unpacking {} packages"),
)
"""pip's lines, and what is said of each."""


def step_of(line: str) -> str | None:
    """What a line of pip's says in a few words; None if it is not worth a word."""
    for pattern, words in STEPS:
        if found := pattern.match(line):
            names = found.groups()
            return words.format(len(names[0].split(", "))) if "packages" in words else words.format(*names)
    return None


def main() -> int:
    command = [sys.executable, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check", *sys.argv[1:]]
    # setuptools warns about editable installations whenever one is made.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    terminal, begun_s, used = sys.stdout.isatty(), time.monotonic(), shutil.disk_usage(sys.prefix).used
    printed: list[str] = []
    step, said_s = "starting pip", -SAY_EVERY_S
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            line = ""
        if line is None:
            break
        printed += [line] if line else []
        step = step_of(line) or step
        now_s = time.monotonic()
        if now_s - said_s < (0.2 if terminal else SAY_EVERY_S):
            continue
        said_s = now_s
        gb = max(0.0, (shutil.disk_usage(sys.prefix).used - used) / 1e9)
        text = f"  {now_s - begun_s:4.0f} s, {gb:.1f} GB on disk: {step}"
        print(f"\r{text[:100]:100}" if terminal else text, end="" if terminal else "\n", flush=True)
    if terminal:
        print("\r" + " " * 100, end="\r")
    status = process.wait()
    if status:
        print("\n".join(printed[-60:]), f"\npip ended with status {status}; its last lines are above", file=sys.stderr)
    else:
        print(f"  installed in {time.monotonic() - begun_s:.0f} s")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
