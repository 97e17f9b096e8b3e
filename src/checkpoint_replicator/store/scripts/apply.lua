-- Write changes of a job under its lease and its fence; refused, nothing is changed.
-- KEYS[1]     ckpt:{<job>}:lease   string with TTL: JSON of a Lease
-- KEYS[2]     ckpt:{<job>}:fence   hash: token, epoch, number (the highest stamp), call (the last write)
-- KEYS[3]     ckpt:{<job>}:keys    hash: name of each key below -> hash or zset
-- KEYS[4...]  ckpt:{<job>}:<name>  one for each change, in order
-- ARGV[1, 2]  incarnation, token of the lease
-- ARGV[3..5]  token, epoch, number of the stamp
-- ARGV[6..8]  the last stamp that the caller saw in the fence: below it Redis came back with older data
-- ARGV[9, 10] who calls (random), its how manyth call: a repeated or overtaken one is answered and not done again
-- ARGV[11]    about how many events stay
-- ARGV[12...] for each change: verb, name, count, then count elements
--               hash    field, text, ...     add to the hash
--               hash!   field, text, ...     the hash is these fields
--               zset    score, member, ...   add to the sorted set
--               zset!   score, member, ...   the sorted set is these members
--               drop                         remove the key
--               event   field, text, ...     append to the stream
-- The fence goes first: if the server dies half-way it is too high, which costs a number. The call goes last: then a
-- repetition is done anew. The caller puts the change that makes the others valid last.
-- Returns written (0 or 1), token, epoch, number of the fence.

local seen = fence(KEYS[2])
local stamp = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])}
local after = {tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])}

local function above(one, other)
  for part = 1, 3 do
    if one[part] ~= other[part] then
      return one[part] > other[part]
    end
  end
  return false
end

local function refused()
  local answer = texts(seen)
  return {0, answer[1], answer[2], answer[3]}
end

if not owned(KEYS[1], ARGV[1], ARGV[2]) then
  return refused()
end

local caller, count = string.match(run('HGET', KEYS[2], 'call') or '', '^(%w+):(%d+)$')
if caller == ARGV[9] and tonumber(ARGV[10]) <= tonumber(count) then
  return {1, ARGV[3], ARGV[4], ARGV[5]}
end

if above(seen, stamp) or above(after, seen) then
  return refused()
end

run('HSET', KEYS[2], 'token', ARGV[3], 'epoch', ARGV[4], 'number', ARGV[5])

-- What only tells, and what is written whole, takes the place of a key that somebody gave another type.
local function clear(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    redis.call('UNLINK', key)
  end
end
clear(KEYS[3], 'hash')

local at = 12
for change = 4, #KEYS do
  local key = KEYS[change]
  local verb, name, elements = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local first, last = at + 3, at + 2 + elements
  at = last + 1
  if verb == 'event' then
    clear(key, 'stream')
    run('XADD', key, 'MAXLEN', '~', ARGV[11], '*', unpack(ARGV, first, last))
  else
    if verb == 'drop' or string.sub(verb, -1) == '!' then
      redis.call('UNLINK', key)
      redis.call('HDEL', KEYS[3], name)
    end
    if elements > 0 then
      local kind = string.sub(verb, 1, 4)
      run(kind == 'hash' and 'HSET' or 'ZADD', key, unpack(ARGV, first, last))
      run('HSET', KEYS[3], name, kind)
    end
  end
end

run('HSET', KEYS[2], 'call', ARGV[9] .. ':' .. ARGV[10])
return {1, ARGV[3], ARGV[4], ARGV[5]}
