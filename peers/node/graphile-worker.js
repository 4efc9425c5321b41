// Graphile Worker.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { main } from "./workload.js";

const CONCURRENT_JOBS = 24;
const LOCAL_QUEUE = 500;
const COMPLETE_BATCH_DELAY_MS = 0;

const ADD_JOB = "SELECT graphile_worker.add_job('order_placed', $1::json)";
const ADD_JOBS = `SELECT count(*) FROM graphile_worker.add_jobs(
  ARRAY(SELECT json_populate_recordset(NULL::graphile_worker.job_spec, $1::json)))`;

const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

class GraphileWorker {
  unfinished = "SELECT count(*) FROM graphile_worker._private_jobs";

  constructor(url) {
    this.url = url;
  }

  /** In a transaction of the caller, jobs are added by the SQL functions. */
  enqueue(client, payloads) {
    if (payloads.length === 1) {
      return client.query({ name: "add_job", text: ADD_JOB, values: [JSON.stringify(payloads[0])] });
    }
    const specs = payloads.map((payload) => ({ identifier: "order_placed", payload }));
    return client.query({ name: "add_jobs", text: ADD_JOBS, values: [JSON.stringify(specs)] });
  }

  async work(handle) {
    const worker = {
      connectionString: this.url,
      concurrentJobs: CONCURRENT_JOBS,
      maxPoolSize: 10,
      localQueue: { size: LOCAL_QUEUE },
      completeJobBatchDelay: COMPLETE_BATCH_DELAY_MS,
    };
    const taskList = { order_placed: async (payload) => handle(payload.index) };
    this.runner = await run({ preset: { worker }, taskList, noHandleSignals: true, logger: quiet });
  }

  async stop() {
    await this.runner?.stop();
  }
}

await main(async (url) => {
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  await utils.migrate();
  await utils.release();
  return new GraphileWorker(url);
});
