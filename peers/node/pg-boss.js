// pg-boss.

import { PgBoss } from "pg-boss";
import { main } from "./workload.js";

const QUEUE = "orders";
const WORKERS = 4;
const BATCH = 500;

class Boss {
  unfinished = "SELECT count(*) FROM pgboss.job WHERE name = 'orders' AND state <> 'completed'";

  /** The statements that are prepared, so that each is planned but once. */
  statements = new Map();

  constructor(boss) {
    this.boss = boss;
  }

  statementName(text) {
    if (!this.statements.has(text)) this.statements.set(text, `statement_${this.statements.size}`);
    return this.statements.get(text);
  }

  enqueue(client, payloads) {
    const db = { executeSql: (text, values) => client.query({ name: this.statementName(text), text, values }) };
    if (payloads.length === 1) return this.boss.send(QUEUE, payloads[0], { db });
    return this.boss.insert(QUEUE, payloads.map((data) => ({ data })), { db });
  }

  /** After a full batch, or once notified, it fetches at once. */
  async work(handle) {
    const options = {
      localConcurrency: WORKERS,
      batchSize: BATCH,
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
      notifyPollingIntervalSeconds: 0.5,
    };
    await this.boss.work(QUEUE, options, async (jobs) => {
      for (const job of jobs) handle(job.data.index);
    });
  }

  async stop() {
    await this.boss.stop({ graceful: false });
  }
}

await main(async (url, workload) => {
  // Notifications are off by default and cost the writers; only the latency needs them.
  const notify = workload === "L";
  const boss = new PgBoss({ connectionString: url, max: 10, useListenNotify: notify, schedule: false, supervise: false });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  await boss.createQueue(QUEUE, { notify });
  return new Boss(boss);
});
