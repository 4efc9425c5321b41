"""Makes topics and reads them back, for the tests.

client.py create BROKERS TOPIC PARTITIONS   makes a topic
client.py user BROKERS NAME PASSWORD        makes a user who logs in by SCRAM-SHA-512
client.py read BROKERS TOPIC                prints all messages of a topic, each as a line of JSON
client.py tls CERTIFICATE KEY               prints a port, takes a broker's address, and speaks TLS for it on that port

BROKERS is host:port, or an object of librdkafka's properties.
"""

import asyncio
import json
import ssl
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)


def config(brokers):
    return json.loads(brokers) if brokers.startswith("{") else {"bootstrap.servers": brokers}


def create(brokers, topic, partitions):
    admin = AdminClient(config(brokers))
    admin.create_topics([NewTopic(topic, num_partitions=int(partitions), replication_factor=1)])[topic].result(30)


def user(brokers, name, password):
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    wanted = [UserScramCredentialUpsertion(name, how, password.encode())]
    admin = AdminClient(config(brokers))
    admin.alter_user_scram_credentials(wanted)[name].result(30)


def read(brokers, topic):
    consumer = Consumer({**config(brokers), "group.id": "reader", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    left = {}
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        if low < high:
            left[partition] = high
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    give_up = time.monotonic() + 60
    while left:
        if time.monotonic() > give_up:
            sys.exit(f"partitions {left} of {topic} could not be read to their ends")
        for message in consumer.consume(500, timeout=0.5):
            give_up = time.monotonic() + 60
            if message.error():
                sys.exit(str(message.error()))
            show(message)
            if message.offset() + 1 >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
    consumer.close()


def show(message):
    text = lambda value: None if value is None else value.decode()
    print(
        json.dumps(
            {
                "partition": message.partition(),
                "offset": message.offset(),
                "key": text(message.key()),
                "headers": [[name, text(value)] for name, value in message.headers() or []],
                "body": list(message.value()),
            }
        )
    )


def tls(certificate, key):
    asyncio.run(serve_tls(certificate, key))


async def serve_tls(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    broker = None

    async def serve(reader, writer):
        to_reader, to_writer = await asyncio.open_connection(*broker)
        await asyncio.gather(hand_on(reader, to_writer), hand_on(to_reader, writer))

    async def hand_on(reader, writer):
        try:
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    broker = (await asyncio.to_thread(sys.stdin.readline)).strip().split(":")
    await server.serve_forever()


{"create": create, "user": user, "read": read, "tls": tls}[sys.argv[1]](*sys.argv[2:])
