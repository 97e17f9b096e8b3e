-- Write a host's registration, in place of an earlier one.
-- KEYS[1]    ckpt:host:<host>   hash: a HostRecord
-- ARGV[...]  field, text, ...

redis.call('UNLINK', KEYS[1])
return redis.call('HSET', KEYS[1], unpack(ARGV))
