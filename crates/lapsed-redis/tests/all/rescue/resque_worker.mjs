// node-resque beside a test. Usage: resque_worker.mjs add ID... | work NAME | clean AGE_MS | failed
//
// `add` enqueues jobs and prints `added`. `work` prints `ready`; a job prints `started ID`, waits for SLOW milliseconds, and
// prints `ran ID`. `clean` prints `ready`, waits for a line, runs node-resque's own clean-up of workers that have had a job for
// AGE_MS, and prints `cleaned`.
// `failed` prints each failed job as `QUEUE ID EXCEPTION`, and then `end`.
import resque from 'node-resque';

const url = new URL(process.env.REDIS_URL);
const connection = { pkg: 'ioredis', host: url.hostname, port: Number(url.port), database: 0, namespace: 'resque' };
const [what, ...rest] = process.argv.slice(2);
const perform = async (id) => {
  console.log(`started ${id}`);
  await new Promise((done) => setTimeout(done, Number(process.env.SLOW ?? 0)));
  console.log(`ran ${id}`);
};
const jobs = { send: { perform }, idle: { perform: async (...args) => console.log(`ran idle ${args.length}`) } };

if (what === 'work') {
  const worker = new resque.Worker({ connection, name: rest[0], queues: ['mails'], timeout: 200 }, jobs);
  worker.on('error', (error) => console.error(error));
  await worker.connect();
  await worker.start();
  console.log('ready');
} else {
  const queue = new resque.Queue({ connection }, jobs);
  queue.on('error', (error) => console.error(error));
  await queue.connect();
  if (what === 'add') {
    for (const id of rest) {
      await queue.enqueue('mails', id === 'idle' ? 'idle' : 'send', id === 'idle' ? [] : [id, { to: 'a/b', n: 1.5 }]);
    }
    console.log('added');
  } else if (what === 'clean') {
    console.log('ready');
    await new Promise((told) => process.stdin.once('data', told));
    process.stdin.destroy();
    await queue.cleanOldWorkers(Number(rest[0]));
    console.log('cleaned');
  } else {
    for (const job of await queue.failed(0, -1)) {
      console.log(`${job.queue} ${job.payload.args[0]} ${job.exception}`);
    }
    console.log('end');
  }
  await queue.end();
}
