"""Runs a program with a terminal as one of its streams, and prints both as JSON.

terminal.py STREAM PROGRAM ARGUMENT...    STREAM is 1 for standard output, 2 for standard error
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading

stream, program = int(sys.argv[1]), sys.argv[2:]
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
streams["stdout" if stream == 1 else "stderr"] = theirs
child = subprocess.Popen(program, stdin=subprocess.DEVNULL, **streams)
os.close(theirs)
shown = bytearray()


def read():
    # The end of a terminal is an error.
    try:
        while part := os.read(ours, 65536):
            shown.extend(part)
    except OSError:
        pass


reader = threading.Thread(target=read)
reader.start()
out, error = child.communicate()
reader.join()
shown = shown.decode().replace("\r\n", "\n")
print(json.dumps([shown, error.decode()] if stream == 1 else [out.decode(), shown]))
sys.exit(child.returncode)
