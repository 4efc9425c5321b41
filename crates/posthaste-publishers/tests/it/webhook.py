"""The other end of the tests of webhooks.

webhook.py PORT [CERTIFICATE KEY]

Prints its port, then a line of JSON for each request, with how many are there at once and when it came, in seconds. What it
answers stands in the path:

/status/CODE            that, after `?retry_after=` and `?location=`
/then/CODE,CODE,…       one after the other, and the last for ever; counted for each path
/slow/SECONDS           204 after a while
/quota/N                204 to N requests in a second, and 429 to others, with `retry-after: 1`
/asked                  what the header `answer` of the event says, like `status/502`; 204 without it
/drop                   nothing: closes the connection
/big                    500, and a body that does not end
/stall/CODE             that, and a body of which the end never comes
"""

import base64
import collections
import hashlib
import hmac
import http.server
import json
import ssl
import sys
import threading
import time
import urllib.parse

SECRET = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
lock = threading.Lock()
seen = collections.Counter()
active = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global active
        body = self.rfile.read(int(self.headers["content-length"]))
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        with lock:
            active += 1
            count = seen[url.path]
            seen[url.path] += 1
            print(json.dumps({
                "path": url.path,
                # A header that came more than once has all its values.
                "headers": {name.lower(): ", ".join(self.headers.get_all(name)) for name in self.headers},
                "body": base64.b64encode(body).decode(),
                "active": active,
                "at": time.monotonic(),
                "genuine": self.genuine(body),
            }), flush=True)
        path = url.path
        if path == "/asked":
            path = "/" + self.headers.get("answer", "status/204")
        self.answer(path.split("/")[1:], query, count)

    def leave(self):
        """Before the answer is out: whoever has it may send the next."""
        global active
        with lock:
            active -= 1

    def genuine(self, body):
        signed = f'{self.headers["webhook-id"]}.{self.headers["webhook-timestamp"]}.'.encode() + body
        wanted = "v1," + base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
        return wanted in (self.headers["webhook-signature"] or "").split(" ")

    def answer(self, path, query, count):
        if path[0] == "status":
            self.reply(int(path[1]), query)
        elif path[0] == "then":
            codes = path[1].split(",")
            self.reply(int(codes[min(count, len(codes) - 1)]), query)
        elif path[0] == "quota":
            with lock:
                second = ("quota", int(time.monotonic()))
                seen[second] += 1
                taken = seen[second] <= int(path[1])
            self.reply(204 if taken else 429, query if taken else {**query, "retry_after": "1"})
        elif path[0] == "slow":
            time.sleep(float(path[1]))
            self.reply(204, query)
        elif path[0] == "stall":
            self.leave()
            self.send_response(int(path[1]))
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"to begin with")
            self.wfile.flush()
            time.sleep(120)
            self.close_connection = True
        elif path[0] == "big":
            self.leave()
            self.send_response(500)
            self.send_header("content-length", "100000000000")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"no " * 100000)
            except OSError:
                self.close_connection = True
        else:
            self.leave()
            self.close_connection = True

    def reply(self, code, query):
        self.leave()
        body = b"" if code == 204 else f"this is {code}\r\n".encode()
        self.send_response(code)
        for name in ("retry_after", "location"):
            if name in query:
                self.send_header(name.replace("_", "-"), query[name])
        if code != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.daemon_threads = True
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
