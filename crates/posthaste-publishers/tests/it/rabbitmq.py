"""The other side of the tests of RabbitMQ: makes exchanges and queues, and reads back what is in them.

rabbitmq.py URL make JSON    {"exchanges": {name: kind}, "queues": {name: arguments}, "bindings": [[queue, exchange, key]]}
rabbitmq.py URL take QUEUE   a line of JSON for each message, which is then gone
rabbitmq.py URL count QUEUE  how many messages there are, which are then gone with the queue
"""

import base64
import json
import sys

import pika

url, command, argument = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
if command == "make":
    wanted = json.loads(argument)
    for name, kind in wanted.get("exchanges", {}).items():
        channel.exchange_declare(name, kind, durable=True)
    for name, arguments in wanted.get("queues", {}).items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    for queue, exchange, key in wanted.get("bindings", []):
        channel.queue_bind(queue, exchange, key)
elif command == "count":
    print(channel.queue_delete(argument).method.message_count)
elif command == "take":
    while True:
        method, properties, body = channel.basic_get(argument, auto_ack=True)
        if method is None:
            break
        print(json.dumps({
            "exchange": method.exchange,
            "routing_key": method.routing_key,
            "message_id": properties.message_id,
            "content_type": properties.content_type,
            "delivery_mode": properties.delivery_mode,
            "app_id": properties.app_id,
            "headers": properties.headers,
            "body": base64.b64encode(body).decode(),
        }))
else:
    sys.exit(__doc__)
connection.close()
