#!/usr/bin/env python3
"""Runs commands on emulated hosts in place of ssh. A server starts them, so that a command outlives the process that requested it.

    remote_shell.py serve SOCKET                        until it is killed
    remote_shell.py run SOCKET ON_HOST HOST COMMAND...  prints the command's output, and exits with its exit code

ON_HOST is WEFT_ON_HOST of tools/emulated_hosts.sh.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def handle(connection):
    with connection, connection.makefile("rb") as request:
        words = json.loads(request.readline())
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=connection.fileno(), stderr=connection.fileno(),
                                   start_new_session=True)
        code = process.wait()
        try:
            connection.sendall(f"\nexit {code}\n".encode())
        except OSError:
            pass  # The asking process has ended.


def serve(path):
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=handle, args=(connection,), daemon=True).start()


def run(path, words):
    with socket.socket(socket.AF_UNIX) as connection:
        for attempt in range(100):  # The server may be starting.
            try:
                connection.connect(path)
                break
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)
        connection.sendall(json.dumps(words).encode() + b"\n")
        with connection.makefile("rb") as answer:
            code = 255  # The server has ended.
            for line in answer:
                if line.startswith(b"exit "):
                    code = int(line.split()[1])
                else:
                    os.write(1, line)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
