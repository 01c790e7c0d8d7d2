import Redis from 'ioredis';
const redis = new Redis(process.env.REDIS_URL);

const [incarnation] = await redis.fcall('lapsed_sessions_start', 1, 'disconnected_sessions', 'chat', 'i-1', 90000);
await redis.fcall('lapsed_sessions_activate', 4, 'disconnected_sessions', 'session:s-1', 'ref_count:s-1', 'broadcaster:', 'chat', 's-1', 'broadcaster_user_id', 'b-1');
const [references] = await redis.fcall('lapsed_sessions_connect', 3, 'disconnected_sessions', 'session:s-1', 'ref_count:s-1', 'chat', 's-1', 'i-1', incarnation);

await redis.quit();
