import Redis from 'ioredis';
const redis = new Redis(process.env.REDIS_URL);

const [incarnation] = await redis.fcall('lapsed_inflight_start', 1, 'lapsed:inflight', 'mail', 'w-1', 300000);
await redis.fcall('lapsed_inflight_enqueue', 1, 'lapsed:inflight', 'mail', 'welcome', 'job-1', '{"to":"ada"}', 'job-2', '{"to":"bob"}');
const [[id, token, payload]] = await redis.fcall('lapsed_inflight_take', 1, 'lapsed:inflight', 'mail', 'w-1', incarnation, 'welcome', 1);
await redis.fcall('lapsed_inflight_beat', 1, 'lapsed:inflight', 'mail', 'w-1', incarnation); // every 60 s, while it works on it
await redis.fcall('lapsed_inflight_complete', 1, 'lapsed:inflight', 'mail', id, token); // `LOST` if it was too slow

await redis.quit();
