// The workloads, written once. A peer says how it writes and how it works; the rest is the same for both.

import { parseArgs } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const WRITERS = 8;
const MANY = 100;
const FILL = 1000;
/** How long everybody writes before it counts: connections are opened and statements prepared. */
const LEAD_IN_MS = 200;
const PATIENCE_MS = 30_000;

const ORDERS =
  "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer TEXT, total NUMERIC)";
const ORDER = { name: "order", text: "INSERT INTO orders (customer, total) VALUES ($1, 19.90)", values: ["customer"] };

/** About 200 bytes of JSON. */
const payload = (index) => ({ index, order: "o".repeat(75), customer: "c".repeat(75), total: "19.90" });

const range = (first, end) => Array.from({ length: end - first }, (_, i) => first + i);

/** Which events the handler has seen, and when. */
class Handled {
  startedAt = new Map();
  repeats = 0;

  constructor(events) {
    this.events = events;
    this.all = new Promise((resolve) => (this.finish = resolve));
  }

  event(index) {
    if (this.startedAt.has(index)) this.repeats += 1;
    this.startedAt.set(index, performance.now());
    if (this.startedAt.size === this.events) this.finish();
  }

  async wait() {
    for (let before = -1; this.startedAt.size < this.events; before = this.startedAt.size) {
      if (this.startedAt.size === before) throw new Error(`stuck after ${before} of ${this.events} events`);
      const patience = new AbortController();
      const timeout = sleep(PATIENCE_MS, null, { signal: patience.signal }).catch(() => {});
      await Promise.race([this.all, timeout]);
      patience.abort();
    }
  }

  check() {
    if (this.repeats > 0) throw new Error(`the handler saw ${this.repeats} events again`);
  }
}

/** Calls per second of so many writers; each call has a number of its own. */
async function repeat(write, seconds) {
  const startedAt = performance.now() + LEAD_IN_MS;
  let begun = 0;
  let written = 0;
  const writer = async () => {
    while (performance.now() - startedAt < seconds * 1000) {
      await write(begun++);
      if (performance.now() >= startedAt) written += 1;
    }
  };
  await Promise.all(range(0, WRITERS).map(writer));
  return (written * 1000) / (performance.now() - startedAt);
}

/** Runs the block in a transaction on a connection of its own. */
async function transaction(pool, block) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    await block(client);
    await client.query("COMMIT");
  } finally {
    client.release();
  }
}

async function writeOne(peer, pool, { seconds }) {
  const write = (index) =>
    transaction(pool, async (client) => {
      await client.query(ORDER);
      await peer.enqueue(client, [payload(index)]);
    });
  return { workload: "W", value: await repeat(write, seconds), unit: "tx/s" };
}

async function writeMany(peer, pool, { seconds }) {
  const write = (index) =>
    transaction(pool, async (client) => {
      await client.query(ORDER);
      await peer.enqueue(client, range(index * MANY, (index + 1) * MANY).map(payload));
    });
  return { workload: "W100", value: MANY * (await repeat(write, seconds)), unit: "events/s" };
}

const fill = (peer, pool, indices) => transaction(pool, (client) => peer.enqueue(client, indices.map(payload)));

async function drain(peer, pool, { events }) {
  for (let first = 0; first < events; first += FILL) {
    await fill(peer, pool, range(first, Math.min(first + FILL, events)));
  }
  // As it is done for the others: the server knows then how large the tables are.
  await pool.query("VACUUM ANALYZE");
  await pool.query("CHECKPOINT");
  const handled = new Handled(events);
  const unfinished = async () => Number((await pool.query(peer.unfinished)).rows[0].count);
  const startedAt = performance.now();
  await peer.work((index) => handled.event(index));
  await handled.wait();
  const handledAt = performance.now();
  while ((await unfinished()) > 0) {
    if (performance.now() - handledAt > PATIENCE_MS) throw new Error(`${await unfinished()} events are not done`);
    await sleep(1);
  }
  const value = (events * 1000) / (performance.now() - startedAt);
  handled.check();
  return { workload: "D", value, unit: "events/s" };
}

async function latency(peer, pool, { rate, seconds }) {
  // The first second is for the worker to come up, and does not count.
  const events = rate * (seconds + 1);
  const handled = new Handled(events);
  const committedAt = [];
  await peer.work((index) => handled.event(index));
  const startedAt = performance.now();
  for (const index of range(0, events)) {
    const due = startedAt + (index * 1000) / rate - performance.now();
    if (due > 0) await sleep(due);
    await transaction(pool, async (client) => {
      await peer.enqueue(client, [payload(index)]);
    });
    committedAt[index] = performance.now();
  }
  await handled.wait();
  handled.check();
  // The handler may begin before the writer hears of its commit.
  const latency = (index) => Math.max(0, handled.startedAt.get(index) - committedAt[index]);
  const micros = range(rate, events).map((index) => 1000 * latency(index));
  micros.sort((a, b) => a - b);
  const quantile = (q) => micros[Math.round((micros.length - 1) * q)];
  return { workload: "L", p50_us: quantile(0.5), p99_us: quantile(0.99) };
}

const WORKLOADS = { W: writeOne, W100: writeMany, D: drain, L: latency };

/** Runs the workload that the command line names, and prints its result as the last line. */
export async function main(connect) {
  const { values } = parseArgs({
    options: {
      url: { type: "string" },
      workload: { type: "string" },
      seconds: { type: "string", default: "3" },
      events: { type: "string", default: "20000" },
      rate: { type: "string", default: "100" },
    },
  });
  const workload = WORKLOADS[values.workload];
  if (!values.url || !workload) throw new Error("needs --url and --workload W, W100, D or L");
  const [seconds, events, rate] = [values.seconds, values.events, values.rate].map(Number);
  if (![seconds, events, rate].every((it) => it > 0)) throw new Error("--seconds, --events and --rate are numbers above 0");

  const pool = new pg.Pool({ connectionString: values.url, max: WRITERS });
  await pool.query(ORDERS);
  const peer = await connect(values.url, values.workload);
  const result = await workload(peer, pool, { seconds, events, rate });
  await peer.stop();
  await pool.end();
  console.log(JSON.stringify(result));
}
