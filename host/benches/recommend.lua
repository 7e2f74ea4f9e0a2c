-- The rule of `weighted` with its default configuration, twice: with the cost column our guest keeps, and as the
-- plain scan over the load columns. State is kept between calls; `committed` is the row given out last, -1 for none.
local M = {}
local n, sessions, inflow, outflow, cpu, pending, flags, cost = 0

local function reckon(i)
  if flags[i] >= 2 then return math.huge end
  local overload = 0.0
  if cpu[i] > 0.8 or inflow[i] > 5000000.0 then overload = 10000.0 end
  return sessions[i] + pending[i] + (inflow[i] + outflow[i]) * 0.001 + cpu[i] * 1000.0 + overload
end

function M.refresh(s, i, o, c, p, f)
  n, sessions, inflow, outflow, cpu, pending, flags = #s, s, i, o, c, p, f
  cost = {}
  for row = 1, n do cost[row] = reckon(row) end
end

function M.kept(client, client_inflow, client_outflow, committed, now_ms, seed)
  if committed >= 0 then
    local row = committed + 1
    pending[row] = pending[row] + 1
    cost[row] = reckon(row)
  end
  local least, at = math.huge, -1
  for row = 1, n do
    local c = cost[row]
    if c < least then least, at = c, row - 1 end
  end
  return at, least
end

function M.scan(client, client_inflow, client_outflow, committed, now_ms, seed)
  if committed >= 0 then pending[committed + 1] = pending[committed + 1] + 1 end
  local least, at = math.huge, -1
  for row = 1, n do
    local c = reckon(row)
    if c < least then least, at = c, row - 1 end
  end
  return at, least
end

return M
