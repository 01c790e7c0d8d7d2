// Jobs through BullMQ, from being added until their worker is done with them: `node bullmq_jobs.js REDIS_URL JOBS`.
//
// One process adds the jobs in bulk, a thousand at a time, and another runs a worker with a concurrency of 64, whose
// processor does nothing. Completed jobs are removed, which is less work than to keep them. Timed is from the first job's
// adding until the worker has completed the last.
//
// Says its version and what it will call on stdout, waits for a line on stdin, works, says the result.
"use strict";

const { fork } = require("node:child_process");
const { once } = require("node:events");
const { Queue, Worker } = require("bullmq");
const { version } = require("bullmq/package.json");

const QUEUE = "bench";
const CHUNK = 1_000;
const CONCURRENCY = 64;

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

function connectionTo(url) {
  const { hostname: host, port, pathname } = new URL(url);
  return { host, port: Number(port), db: Number(pathname.slice(1) || 0) };
}

/** In a process of its own: tells the parent when it can take jobs, and when it has completed so many. */
async function work(url, jobs) {
  const worker = new Worker(QUEUE, async () => {}, { connection: connectionTo(url), concurrency: CONCURRENCY });
  let completed = 0;
  worker.on("completed", () => {
    completed += 1;
    if (completed === jobs) process.send(completed);
  });
  await worker.waitUntilReady();
  process.send("ready");
}

async function main(url, jobs) {
  const queue = new Queue(QUEUE, { connection: connectionTo(url) });
  await queue.waitUntilReady();
  const worker = fork(__filename, [url, String(jobs), "work"]);
  await once(worker, "message");

  say({ version, call: `addBulk, Worker with concurrency ${CONCURRENCY}` });
  await once(process.stdin, "data");
  const done = once(worker, "message");
  const began = process.hrtime.bigint();
  for (let from = 0; from < jobs; from += CHUNK) {
    const numbers = Array.from({ length: Math.min(CHUNK, jobs - from) }, (_, i) => from + i);
    const opts = { removeOnComplete: true };
    await queue.addBulk(numbers.map((number) => ({ name: "job", data: { number }, opts })));
  }
  const [completed] = await done;
  const tookMs = Number(process.hrtime.bigint() - began) / 1e6;

  const left = await queue.getJobCountByTypes("waiting", "active");
  say({ took_ms: tookMs, recovered: completed - left });
  worker.kill("SIGKILL");
  process.exit(0);
}

const [url, jobs, role] = process.argv.slice(2);
(role === "work" ? work : main)(url, Number(jobs)).catch((error) => {
  console.error(error);
  process.exit(1);
});
