// BullMQ beside a test. Usage: bullmq_worker.mjs add ID... | feed | work NAME
//
// `add` enqueues jobs and prints `added`; `feed` enqueues each id that it reads from stdin and prints `added ID`. `work` runs a
// worker: a job prints `started ID`, waits for SLOW milliseconds (or for as long as its data says), and prints `ran ID`; what
// BullMQ refuses is printed as `error WHY`.
//
//   REDIS_URL
//   LOCK         milliseconds that a lock lasts, 1000 if it is not given
//   STALLED      milliseconds between its own checks for stalled jobs; they come too late to matter if it is not given
//   CONCURRENCY  jobs at a time, 1 if it is not given
//   BULLMQ       the package, `bullmq` (version 6) if it is not given; `bullmq5`
//
// `pause` pauses the queue and prints `paused`; `resume` goes on and prints `resumed`. `take` takes a job by hand with the token `0`, as
// an application does that completes it elsewhere, prints `started ID`, and stays.
import { createInterface } from 'node:readline';

const { Queue, Worker } = await import(process.env.BULLMQ ?? 'bullmq');

const env = (name, otherwise) => Number(process.env[name] ?? otherwise);
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
} else if (what === 'pause' || what === 'resume') {
  const queue = new Queue('mails', { connection });
  await queue[what]();
  await queue.close();
  console.log(`${what}d`);
} else if (what === 'take') {
  const worker = new Worker('mails', null, { connection, autorun: false });
  const job = await worker.getNextJob('0');
  console.log(`started ${job.id}`);
} else if (what === 'feed') {
  const queue = new Queue('mails', { connection });
  queue.on('error', () => {});
  for await (const line of createInterface({ input: process.stdin })) {
    const [id, ms] = line.split(' ');
    await queue.add('send', { ms: Number(ms) }, { jobId: id });
    console.log(`added ${id}`);
  }
} else {
  const options = {
    connection,
    name: rest[0],
    lockDuration: env('LOCK', 1000),
    stalledInterval: env('STALLED', 600000),
    concurrency: env('CONCURRENCY', 1),
    maxStalledCount: env('MAX_STALLED', 1),
  };
  const worker = new Worker('mails', async (job) => {
    console.log(`started ${job.id}`);
    await new Promise((done) => setTimeout(done, job.data.ms ?? env('SLOW', 0)));
    console.log(`ran ${job.id}`);
  }, options);
  worker.on('error', (error) => console.log(`error ${error.message}`));
  await worker.waitUntilReady();
  console.log('ready');
}
