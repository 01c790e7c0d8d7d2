// BullMQ beside a test. Usage: bullmq_worker.mjs add ID... | work NAME
//
// `add` enqueues jobs and prints `added`. `work` runs a worker whose locks last for a second: a job prints `started ID`,
// waits for SLOW milliseconds, and prints `ran ID`. LOCK_MS sets another duration. Its own check for stalled jobs comes too
// late to matter.
import { Queue, Worker } from 'bullmq';

const url = new URL(process.env.REDIS_URL);
const db = Number(url.pathname.slice(1) || 0);
const connection = { host: url.hostname, port: Number(url.port), db, maxRetriesPerRequest: null };
const [what, ...rest] = process.argv.slice(2);
if (what === 'add') {
  const queue = new Queue('mails', { connection });
  for (const id of rest) {
    await queue.add('send', { to: id, amount: '1.0', big: 9007199254740993 }, { jobId: id });
  }
  await queue.close();
  console.log('added');
} else {
  const options = { connection, name: rest[0], lockDuration: Number(process.env.LOCK_MS ?? 1000), stalledInterval: 600000 };
  const worker = new Worker('mails', async (job) => {
    console.log(`started ${job.id}`);
    await new Promise((done) => setTimeout(done, Number(process.env.SLOW ?? 0)));
    console.log(`ran ${job.id}`);
  }, options);
  await worker.waitUntilReady();
  console.log('ready');
}
