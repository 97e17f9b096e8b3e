-- Give the lease back if this incarnation and token hold it.
-- KEYS[1]  ckpt:{<job>}:lease   string with TTL: JSON of a Lease
-- ARGV[1]  incarnation
-- ARGV[2]  token
-- Returns 1 where it was held.

if not owned(KEYS[1], ARGV[1], ARGV[2]) then
  return 0
end
return run('DEL', KEYS[1])
