"""Reads the queue of a run, and leaves everything in it.

read ADDRESS   prints every message, each as a line of JSON
"""

import json
import sys

import pika

QUEUE = "accounts"
PATIENCE = 60


def read(address):
    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{address}/%2f?heartbeat=0"))
    channel = connection.channel()
    left = channel.queue_declare(QUEUE, passive=True).method.message_count
    # Never acknowledged: it all goes back when the connection is closed.
    for method, properties, body in channel.consume(QUEUE, inactivity_timeout=PATIENCE) if left else []:
        if method is None:
            sys.exit(f"{left} messages of the queue did not come within {PATIENCE} s")
        headers = {**(properties.headers or {}), "event-id": properties.message_id}
        print(json.dumps({"headers": headers, "body": body.decode(errors="backslashreplace")}))
        left -= 1
        if left == 0:
            break
    connection.close()


{"read": read}[sys.argv[1]](*sys.argv[2:])
