-- Goes before every script. Errors that name a key begin with BADKEY.

local function bad(key, reason)
  error('BADKEY ' .. key .. ': ' .. reason, 0)
end

-- Run a command on a key; a key of another type is an error that names it.
local function run(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then
      bad(key, answer.err)
    end
    error(answer.err, 0)
  end
  return answer
end

-- A number that can be counted on from here: whole, not negative, and exact in a double; nil for anything else.
local function counted(value)
  local number = tonumber(value)
  if number and number >= 0 and number < 9007199254740992 and number == math.floor(number) then
    return number
  end
  return nil
end

-- The highest stamp as three numbers; zeros where there is none.
local function fence(key)
  local texts = run('HMGET', key, 'token', 'epoch', 'number')
  if not texts[1] and not texts[2] and not texts[3] then
    return {0, 0, 0}
  end
  local stamp = {}
  for part, name in ipairs({'token', 'epoch', 'number'}) do
    stamp[part] = texts[part] and counted(texts[part])
    if not stamp[part] then
      bad(key, 'field ' .. name .. ' is no number')
    end
  end
  return stamp
end

local function whole(number)
  return string.format('%.0f', number)
end

local function texts(stamp)
  return {whole(stamp[1]), whole(stamp[2]), whole(stamp[3])}
end

-- The lease as a table, or nil where there is none; one that does not parse, or a key of another type, belongs to
-- nobody ({}).
local function lease(key)
  local text = redis.pcall('GET', key)
  if not text then
    return nil
  end
  if type(text) ~= 'string' then
    return {}
  end
  local parsed, value = pcall(cjson.decode, text)
  return parsed and type(value) == 'table' and value or {}
end

local function owned(key, incarnation, token)
  local held = lease(key)
  return held ~= nil and held.incarnation == incarnation and held.token == tonumber(token)
end
