-- SPDX-License-Identifier: Apache-2.0
-- What wrk asks: a share of the requests repeats one of so many ids, each with its own input; all
-- others have an id that never comes again. Ends with one line of JSON.
--   wrk ... -s load.lua URL -- SHARE IDS SEED
local pool, unique, share, seed = {}, 0, 0.9, 0

local function body(id, number)
  local row = {}
  for i = 0, 31 do
    row[#row + 1] = string.format("%.4f", (number * 0.618034 + i * 0.377) % 2 - 1)
  end
  return '{"input": [[' .. table.concat(row, ",") .. ']], "id": "' .. id .. '"}'
end

local function formatted(id, number)
  return wrk.format("POST", "/predict", { ["Content-Type"] = "application/json" }, body(id, number))
end

function init(arguments)
  share, seed = tonumber(arguments[1]), tonumber(arguments[3])
  math.randomseed(seed)
  for number = 1, tonumber(arguments[2]) do
    pool[number] = formatted("repeated/" .. number, number)
  end
end

function request()
  if math.random() < share then return pool[math.random(#pool)] end
  unique = unique + 1
  return formatted("unique/" .. seed .. "/" .. unique, seed + unique)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %f, "connect": %d, "read": %d, "write": %d, "status": %d, '
      .. '"timeout": %d, "p50_ms": %f, "p99_ms": %f}\n',
    summary.requests, summary.duration / 1e6, errors.connect, errors.read, errors.write,
    errors.status, errors.timeout, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
