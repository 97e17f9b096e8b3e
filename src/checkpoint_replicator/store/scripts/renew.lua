-- Prolong the lease if this incarnation and token hold it.
-- KEYS[1]  ckpt:{<job>}:lease   string with TTL: JSON of a Lease
-- KEYS[2]  ckpt:{<job>}:fence   hash: token, epoch, number
-- ARGV[1]  incarnation
-- ARGV[2]  token
-- ARGV[3]  time to live in milliseconds
-- ARGV[4]  JSON of the lease
-- Returns held (0 or 1), token, epoch, number.

local stamp = texts(fence(KEYS[2]))
local held = owned(KEYS[1], ARGV[1], ARGV[2])
if held and run('GET', KEYS[1]) == ARGV[4] then
  run('PEXPIRE', KEYS[1], ARGV[3]) -- a full server refuses SET
elseif held then
  run('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
end
return {held and 1 or 0, stamp[1], stamp[2], stamp[3]}
