-- Remove a host's registration if this incarnation wrote it.
-- KEYS[1]  ckpt:host:<host>   hash: a HostRecord
-- ARGV[1]  incarnation
-- Returns 1 where it was removed.

if run('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return 0
end
return redis.call('UNLINK', KEYS[1])
