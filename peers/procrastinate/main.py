"""procrastinate, by the workloads that the other peers are measured by."""

import argparse
import asyncio
import contextlib
import json
import logging
import time

import psycopg
from procrastinate import App, PsycopgConnector

WRITERS = 8
MANY = 100
FILL = 1000
# How long everybody writes before it counts: connections are opened and statements prepared.
LEAD_IN = 0.2
CONCURRENCY = 10
PATIENCE = 30

ORDERS = (
    "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer TEXT, total NUMERIC)"
)
ORDER = "INSERT INTO orders (customer, total) VALUES (%s, 19.90)"
UNFINISHED = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"


def payload(index):
    """About 200 bytes of JSON."""
    return {"index": index, "order": "o" * 75, "customer": "c" * 75, "total": "19.90"}


class Handled:
    """Which events the handler has seen, and when."""

    def __init__(self, events):
        self.events = events
        self.started_at = {}
        self.repeats = 0
        self.all = asyncio.Event()

    def event(self, index):
        if index in self.started_at:
            self.repeats += 1
        self.started_at[index] = time.perf_counter()
        if len(self.started_at) == self.events:
            self.all.set()

    async def wait(self):
        while not self.all.is_set():
            before = len(self.started_at)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all.wait(), PATIENCE)
            if len(self.started_at) == before:
                raise RuntimeError(f"stuck after {before} of {self.events} events")

    def check(self):
        if self.repeats:
            raise RuntimeError(f"the handler saw {self.repeats} events again")


class Peer:
    """A pool, and the task that is deferred and run with it."""

    def __init__(self, url):
        self.app = App(connector=PsycopgConnector(conninfo=url, min_size=WRITERS, max_size=WRITERS + CONCURRENCY))
        self.handled = None
        self.task = self.app.task(name="order_placed")(self.order_placed)

    async def order_placed(self, index, **order):
        self.handled.event(index)

    @contextlib.asynccontextmanager
    async def transaction(self):
        async with self.app.connector.pool.connection() as connection:
            yield connection

    async def enqueue(self, connection, indices):
        deferrer = self.task.configure(connection=connection)
        if len(indices) == 1:
            await deferrer.defer_async(**payload(indices[0]))
        else:
            await deferrer.batch_defer_async(*map(payload, indices))

    async def enqueue_alone(self, indices):
        async with self.transaction() as connection:
            await self.enqueue(connection, indices)

    @contextlib.asynccontextmanager
    async def working(self, handled):
        """Runs a worker for as long as the block lasts."""
        self.handled = handled
        worker = asyncio.create_task(
            self.app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
        )
        try:
            yield
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

    async def unfinished(self):
        async with self.transaction() as connection:
            return (await (await connection.execute(UNFINISHED)).fetchone())[0]


async def repeat(write, seconds):
    """Calls per second of so many writers; each call has a number of its own."""
    started_at = time.perf_counter() + LEAD_IN
    begun = written = 0

    async def writer():
        nonlocal begun, written
        while time.perf_counter() - started_at < seconds:
            begun += 1
            await write(begun - 1)
            written += time.perf_counter() >= started_at

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return written / (time.perf_counter() - started_at)


async def write_one(peer, args):
    async def write(index):
        async with peer.transaction() as connection:
            await connection.execute(ORDER, ("customer",))
            await peer.enqueue(connection, [index])

    return {"workload": "W", "value": await repeat(write, args.seconds), "unit": "tx/s"}


async def write_many(peer, args):
    async def write(index):
        async with peer.transaction() as connection:
            await connection.execute(ORDER, ("customer",))
            await peer.enqueue(connection, range(index * MANY, (index + 1) * MANY))

    return {"workload": "W100", "value": MANY * await repeat(write, args.seconds), "unit": "events/s"}


async def drain(peer, args):
    for first in range(0, args.events, FILL):
        await peer.enqueue_alone(range(first, min(first + FILL, args.events)))
    # As it is done for the others: the server knows then how large the tables are.
    async with await psycopg.AsyncConnection.connect(args.url, autocommit=True) as connection:
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    handled = Handled(args.events)
    started_at = time.perf_counter()
    async with peer.working(handled):
        await handled.wait()
        handled_at = time.perf_counter()
        while unfinished := await peer.unfinished():
            if time.perf_counter() - handled_at > PATIENCE:
                raise RuntimeError(f"{unfinished} events are not done")
            await asyncio.sleep(0.001)
        rate = args.events / (time.perf_counter() - started_at)
    handled.check()
    return {"workload": "D", "value": rate, "unit": "events/s"}


async def latency(peer, args):
    # The first second is for the worker to come up, and does not count.
    warm_up, events = args.rate, args.rate * (args.seconds + 1)
    handled, committed_at = Handled(events), []
    writer = Peer(args.url)
    async with writer.app.open_async(), peer.working(handled):
        started_at = time.perf_counter()
        for index in range(events):
            await asyncio.sleep(max(0, started_at + index / args.rate - time.perf_counter()))
            async with writer.transaction() as connection:
                await writer.enqueue(connection, [index])
            committed_at.append(time.perf_counter())
        await handled.wait()
    handled.check()
    # The handler may begin before the writer hears of its commit.
    micros = sorted(1e6 * max(0, handled.started_at[i] - committed_at[i]) for i in range(warm_up, events))
    p50, p99 = (micros[round((len(micros) - 1) * q)] for q in (0.5, 0.99))
    return {"workload": "L", "p50_us": p50, "p99_us": p99}


WORKLOADS = {"W": write_one, "W100": write_many, "D": drain, "L": latency}


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="an empty database, made for this one call")
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--seconds", type=int, default=3, help="how long W, W100 and L last")
    parser.add_argument("--events", type=int, default=20_000, help="how many events D finds waiting")
    parser.add_argument("--rate", type=int, default=100, help="events per second of L")
    args = parser.parse_args()
    peer = Peer(args.url)
    async with peer.app.open_async():
        async with peer.transaction() as connection:
            await connection.execute(ORDERS)
        await peer.app.schema_manager.apply_schema_async()
        result = await WORKLOADS[args.workload](peer, args)
    print(json.dumps(result), flush=True)


# It warns of an app in the main module, which matters only to its own command line.
logging.getLogger("procrastinate").setLevel(logging.ERROR)
asyncio.run(main())
