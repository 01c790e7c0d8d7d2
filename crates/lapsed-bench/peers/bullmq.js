// BullMQ's own recovery of jobs whose worker is gone: `node bullmq.js REDIS_URL ORPHANS`.
//
// Prepared with BullMQ itself: the jobs are added in bulk and taken by a worker (`getNextJob`), whose
// locks then run out. A job is recovered by the second check that finds it without a lock, so the
// first check, which only marks, is part of the preparation. Timed is the second, called as BullMQ's
// own timer calls it: `Worker.moveStalledJobsToWait()`.
//
// Says its version and what it will call on stdout, waits for a line on stdin, recovers, says the result.
"use strict";

const { once } = require("node:events");
const { Queue, Worker } = require("bullmq");
const Redis = require("ioredis");
const { version } = require("bullmq/package.json");

const QUEUE = "bench";
const CHUNK = 1_000;
// Neither has a part in how long a check takes: how long a lock outlives its worker, and how soon the
// next check may follow the last one.
const LOCK_MS = 2_000;
const CHECK_MS = 1_000;
const PATIENCE_MS = 120_000;

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

async function until(what, look) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await look())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${PATIENCE_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** So many jobs, taken by a worker that then is gone. */
async function orphan(queue, connection, orphans) {
  const worker = new Worker(QUEUE, null, { connection, autorun: false, lockDuration: LOCK_MS });
  for (let from = 0; from < orphans; from += CHUNK) {
    const numbers = Array.from({ length: Math.min(CHUNK, orphans - from) }, (_, i) => from + i);
    await queue.addBulk(numbers.map((number) => ({ name: "job", data: { number } })));
    await Promise.all(numbers.map(() => worker.getNextJob("gone", { block: false })));
  }
  await worker.close(true);
}

async function main(url, orphans) {
  const { hostname: host, port, pathname } = new URL(url);
  const connection = { host, port: Number(port), db: Number(pathname.slice(1) || 0) };
  const queue = new Queue(QUEUE, { connection });
  await orphan(queue, connection, orphans);
  const taken = await queue.getActiveCount();
  if (taken !== orphans) throw new Error(`${taken} of ${orphans} jobs are active`);

  const checker = new Worker(QUEUE, null, { connection, autorun: false, stalledInterval: CHECK_MS });
  await checker.waitUntilReady();
  const client = new Redis(connection);
  await checker.moveStalledJobsToWait();
  // The jobs are numbered in their order; the last ones were taken last.
  const locks = Array.from({ length: Math.min(CHUNK, orphans) }, (_, i) =>
    queue.toKey(`${orphans - i}:lock`),
  );
  await until("the last lock's end", async () => (await client.exists(...locks)) === 0);
  await until("the next check", async () => (await client.exists(queue.toKey("stalled-check"))) === 0);

  say({ version, call: "Worker.moveStalledJobsToWait()" });
  await once(process.stdin, "data");
  const began = process.hrtime.bigint();
  await checker.moveStalledJobsToWait();
  const tookMs = Number(process.hrtime.bigint() - began) / 1e6;

  const recovered = await queue.getWaitingCount();
  say({ took_ms: tookMs, recovered });
  process.exit(0);
}

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
