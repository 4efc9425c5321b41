"""Makes the stream of a run, and reads all of it.

prepare ADDRESS   makes the stream
read ADDRESS      prints every message of it, each as a line of JSON
"""

import asyncio
import json
import sys

import nats
from nats.js.api import StorageType

STREAM = "accounts"
SUBJECTS = "accounts.>"
PATIENCE = 60
AT_ONCE = 200


async def main(command, address):
    client = await nats.connect(f"nats://{address}", connect_timeout=PATIENCE, allow_reconnect=False)
    stream = client.jetstream(timeout=PATIENCE)
    if command == "prepare":
        await stream.add_stream(name=STREAM, subjects=[SUBJECTS], storage=StorageType.FILE)
    else:
        await read(stream)
    await client.close()


async def read(stream):
    state = (await stream.stream_info(STREAM)).state
    if state.messages and state.last_seq - state.first_seq + 1 != state.messages:
        sys.exit(f"the stream has {state.messages} messages between {state.first_seq} and {state.last_seq}")
    reader = await stream.pull_subscribe(SUBJECTS, stream=STREAM)
    following, left = state.first_seq, state.messages
    while left:
        for message in await reader.fetch(min(left, AT_ONCE), timeout=PATIENCE):
            sequence = message.metadata.sequence.stream
            if sequence != following:
                sys.exit(f"message {sequence} came instead of {following}")
            following, left = following + 1, left - 1
            await message.ack()
            body = message.data.decode(errors="backslashreplace")
            print(json.dumps({"headers": message.headers or {}, "body": body}))


asyncio.run(main(*sys.argv[1:]))
