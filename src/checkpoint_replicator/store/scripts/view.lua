-- Read at one moment what a node must obey.
-- KEYS[1]  ckpt:{<job>}:lease      string: JSON of a Lease
-- KEYS[2]  ckpt:{<job>}:fence      hash: token, epoch, number
-- KEYS[3]  ckpt:{<job>}:epoch      hash: an EpochRecord; its field number completes the next name
-- KEYS[4]  ckpt:{<job>}:restore:   + number, hash: decision, n<rank>
-- KEYS[5]  ckpt:{<job>}:keep       hash: a KeepList
-- KEYS[6]  ckpt:{<job>}:orders     hash: host -> JSON of Orders
-- ARGV[1]  host
-- ARGV[2]  field of the rank's fetch plan (n<rank>), empty for a host without a rank
-- Returns lease, fence, epoch, decision, plan, keep, orders; hashes as field, text, ...

local epoch = run('HGETALL', KEYS[3])
local number = run('HGET', KEYS[3], 'number')
local decision, plan = false, false
if number then
  local restore = run('HMGET', KEYS[4] .. number, 'decision', ARGV[2])
  decision = restore[1]
  plan = ARGV[2] ~= '' and restore[2]
end
return {
  run('GET', KEYS[1]),
  run('HGETALL', KEYS[2]),
  epoch,
  decision,
  plan,
  run('HGETALL', KEYS[5]),
  run('HGET', KEYS[6], ARGV[1]),
}
