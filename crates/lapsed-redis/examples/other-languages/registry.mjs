import Redis from 'ioredis';
const redis = new Redis(process.env.REDIS_URL);

const [incarnation] = await redis.fcall('lapsed_registry_start', 2, 'connections:registry', 'instance:heartbeat:i-1', 'devices', 'i-1', 90000);
await redis.fcall('lapsed_registry_register', 1, 'connections:registry', 'devices', 'i-1', incarnation, '356307042441013');
await redis.fcall('lapsed_registry_beat', 2, 'connections:registry', 'instance:heartbeat:i-1', 'devices', 'i-1', incarnation); // every 30 s

await redis.quit();
