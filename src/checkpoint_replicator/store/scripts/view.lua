-- Read at one moment what a node must obey.
-- KEYS[1]  ckpt:{<job>}:lease      string: JSON of a Lease
-- KEYS[2]  ckpt:{<job>}:fence      hash: token, epoch, number
-- KEYS[3]  ckpt:{<job>}:epoch      hash: an EpochRecord; its field number completes the next name
-- KEYS[4]  ckpt:{<job>}:restore:   + number, hash: decision, n<rank>
-- KEYS[5]  ckpt:{<job>}:keep       hash: a KeepList
-- KEYS[6]  ckpt:{<job>}:orders     hash: host -> JSON of Orders
-- ARGV[1]  host
-- ARGV[2]  field of the rank's fetch plan (n<rank>), empty for a host without a rank
-- A decision, keep list or orders that somebody gave another type count as missing: nobody obeys what is not there, and
-- a coordinator that does not know of the key writes no other in its place.
-- Returns lease, fence, epoch, decision, plan, keep, orders; hashes as field, text, ...

local function read(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then
      return command ~= 'HGET' and {}
    end
    error(answer.err, 0)
  end
  return answer
end

local epoch = run('HGETALL', KEYS[3])
local number = run('HGET', KEYS[3], 'number')
local decision, plan = false, false
if number then
  local restore = read('HMGET', KEYS[4] .. number, 'decision', ARGV[2])
  decision = restore[1] or false
  plan = ARGV[2] ~= '' and restore[2] or false
end
return {
  run('GET', KEYS[1]),
  run('HGETALL', KEYS[2]),
  epoch,
  decision,
  plan,
  read('HGETALL', KEYS[5]),
  read('HGET', KEYS[6], ARGV[1]),
}
