-- Take the lease if nobody has it; who has it gets it again as it is. One that never ends, or ends much later than any
-- coordinator asks for (no coordinator writes such: the server's clock went back), would stop the job for long: it
-- belongs to nobody.
-- KEYS[1]  ckpt:{<job>}:lease   string with TTL: JSON of a Lease
-- KEYS[2]  ckpt:{<job>}:fence   hash: token, epoch, number
-- ARGV[1]  incarnation
-- ARGV[2]  time to live in milliseconds
-- ARGV[3]  JSON of the lease up to the token, which the script adds with the closing brace
-- ARGV[4]  1: do not take it where there is no fence, since Redis lost its data then
-- Returns the token as text, or the reason: `held` where another has the lease, `empty` for the fourth argument.

if ARGV[4] == '1' and redis.call('EXISTS', KEYS[2]) == 0 then
  return 'empty'
end
local stamp = fence(KEYS[2])
local token = stamp[1] + 1
local held = lease(KEYS[1])
local left = run('PTTL', KEYS[1])
if held and left ~= -1 and left <= 10 * tonumber(ARGV[2]) then
  if held.incarnation ~= ARGV[1] or not counted(held.token) then
    return 'held'
  end
  token = held.token
end
if token >= 281474976710656 then
  bad(KEYS[2], 'field token leaves no room for another')
end
run('HSET', KEYS[2], 'token', whole(math.max(token, stamp[1])), 'epoch', whole(stamp[2]), 'number', whole(stamp[3]))
run('SET', KEYS[1], ARGV[3] .. whole(token) .. '}', 'PX', ARGV[2])
return whole(token)
