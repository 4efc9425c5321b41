"""Runs a program with a terminal as some of its streams, and prints what it printed and said, and its status, as JSON.

terminal.py STREAMS ANSWER PROGRAM ARGUMENT...

STREAMS are the numbers of those that are the terminal: 1, 2, or 02 for who is to be asked. ANSWER is typed when the program has asked
something, with ^C and ^D as keys; it is empty where nothing is to be typed. The command in the variable MEANWHILE, as JSON, is run
between the question and the answer.
"""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading

QUESTION = b"[y/N] "
PATIENCE = 60

terminal, answer, program = sys.argv[1], sys.argv[2].encode(), sys.argv[3:]
meanwhile = json.loads(os.environ.pop("MEANWHILE", "[]"))
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
# ^C is for whoever has the terminal. That is this process, and what it starts: were the program alone the first of its session, its end
# could take away what it has said last.
os.setsid()
fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
streams = [subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE]
for stream in terminal:
    streams[int(stream)] = theirs
child = subprocess.Popen(
    program,
    stdin=streams[0],
    stdout=streams[1],
    stderr=streams[2],
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
)
os.close(theirs)
shown, asked = bytearray(), False


def read():
    global asked
    # The end of a terminal is an error.
    try:
        while part := os.read(ours, 65536):
            shown.extend(part)
            if answer and not asked and shown.endswith(QUESTION):
                asked = True
                if meanwhile:
                    subprocess.run(meanwhile, check=True, stdin=subprocess.DEVNULL, capture_output=True)
                os.write(ours, answer.replace(b"^C", b"\x03").replace(b"^D", b"\x04"))
    except OSError:
        pass


reader = threading.Thread(target=read)
reader.start()
try:
    out, error = child.communicate(timeout=PATIENCE)
finally:
    child.kill()
reader.join()
shown = shown.decode().replace("\r\n", "\n")
printed = shown if "1" in terminal else out.decode()
said = shown if "2" in terminal else error.decode()
print(json.dumps({"printed": printed, "said": said, "status": child.returncode, "asked": asked}))
