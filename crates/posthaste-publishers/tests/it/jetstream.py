"""Makes streams and reads them, with a client that is not ours.

jetstream.py URL add CONFIG        makes a stream anew
jetstream.py URL read STREAM       prints its messages as JSON, one in a line
jetstream.py URL count STREAM      prints how many messages it has

With TLS the URL ends with a # and the files of a certificate to trust, of one to show, and of its key, with commas between.
"""

import asyncio
import base64
import json
import ssl
import sys

import nats
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError, NotFoundError


async def main(url, command, argument):
    url, _, files = url.partition("#")
    tls = None
    if files:
        authority, certificate, key = files.split(",")
        tls = ssl.create_default_context(cafile=authority)
        tls.load_cert_chain(certificate, key)
    client = await nats.connect(url, connect_timeout=30, allow_reconnect=False, tls=tls)
    stream = client.jetstream(timeout=30)
    if command == "add":
        # One of an earlier run, if there is one.
        try:
            await stream.delete_stream(json.loads(argument)["name"])
        except NotFoundError:
            pass
        config = StreamConfig.from_response(json.loads(argument))
        while True:
            try:
                await stream.add_stream(config)
                break
            except BadRequestError as error:
                # A server of the cluster that the stream is to be on is not known yet.
                if error.err_code != 10005:
                    raise
                await asyncio.sleep(0.2)
    elif command == "count":
        print((await stream.stream_info(argument)).state.messages)
    elif command == "read":
        state = (await stream.stream_info(argument)).state
        for number in range(state.first_seq, state.last_seq + 1) if state.messages else []:
            # The answer itself: nats-py takes headers for ASCII.
            ask = json.dumps({"seq": number}).encode()
            # By itself it would wait for half a second, thousands of times.
            answer = await client.request(f"$JS.API.STREAM.MSG.GET.{argument}", ask, timeout=30)
            message = json.loads(answer.data)["message"]
            headers = base64.b64decode(message.get("hdrs", "")).decode().strip().split("\r\n")[1:]
            print(json.dumps({
                "seq": message["seq"],
                "subject": message["subject"],
                "headers": once(header.split(": ", 1) for header in headers),
                "body": base64.b64decode(message.get("data", "")).decode(errors="replace"),
                "base64": message.get("data", ""),
            }))
    await client.close()


def once(headers):
    seen = {}
    for name, value in headers:
        if name in seen:
            sys.exit(f"the header {name} is there twice")
        seen[name] = value
    return seen


asyncio.run(main(*sys.argv[1:]))
