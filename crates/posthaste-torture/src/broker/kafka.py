"""Makes the topic of a run, and reads all of it.

prepare ADDRESS   makes the topic
read ADDRESS      prints every message of it, each as a line of JSON
"""

import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "accounts"
PARTITIONS = 3
PATIENCE = 120


def prepare(address):
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(PATIENCE)


def read(address):
    consumer = Consumer({
        "bootstrap.servers": address,
        "group.id": "reader",
        "enable.auto.commit": False,
        # The broker reads each message by itself: what is asked for at once must come before the client gives up.
        "fetch.max.bytes": 1_000_000,
        "fetch.message.max.bytes": 500_000,
        "socket.timeout.ms": 120_000,
    })
    ends = {}
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=PATIENCE)
        if low != 0:
            sys.exit(f"partition {partition} begins at {low}")
        if high > 0:
            ends[partition] = high
    following = dict.fromkeys(ends, 0)
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in ends])
    give_up = time.monotonic() + PATIENCE
    while following != ends:
        if time.monotonic() > give_up:
            sys.exit(f"read up to {following}, and not to {ends}")
        for message in consumer.consume(500, timeout=0.5):
            if message.error():
                print(message.error(), file=sys.stderr)
                continue
            partition, offset = message.partition(), message.offset()
            if offset != following[partition]:
                sys.exit(f"offset {offset} of partition {partition} came instead of {following[partition]}")
            following[partition] = offset + 1
            give_up = time.monotonic() + PATIENCE
            show(message)
    consumer.close()


def show(message):
    text = lambda value: (value or b"").decode(errors="backslashreplace")
    headers = {name: text(value) for name, value in message.headers() or []}
    print(json.dumps({"key": text(message.key()), "headers": headers, "body": text(message.value())}))


{"prepare": prepare, "read": read}[sys.argv[1]](*sys.argv[2:])
