
-- Few invocations are traced. While none is, all others pay only for a look at
-- node.traced: how many were traced since there last was none.
local function trace(node, inv, traceparent)
  node.traced = node.traced + 1
  inv.trace, inv.traced = traceparent, node.traced
end

-- newest_traces returns, by pod, the newest traced invocation among those in the pod and
-- in the pods that it has loans with.
local function newest_traces(node)
  local own, newest = {}, {}
  local function note(by_pod, pod, inv)
    if inv and (not by_pod[pod] or inv.traced > by_pod[pod].traced) then
      by_pod[pod] = inv
    end
  end
  for _, inv in pairs(node.begun) do
    if inv.trace then
      note(own, inv.pod, inv)
      note(newest, inv.pod, inv)
    end
  end
  if not next(own) then
    node.traced = 0
    return newest
  end
  for _, borrower in pairs(node.begun) do
    if borrower.donors ~= NOTHING then
      for donor in pairs(borrower.donors) do -- pods
        note(newest, donor.id, own[borrower.pod])
        note(newest, borrower.pod, own[donor.id])
      end
    end
  end
  return newest
end

-- add_traces adds to each balance its trace, or ''.
local function add_traces(node, balances)
  local newest = node.traced > 0 and newest_traces(node) or NOTHING
  for _, balance in ipairs(balances) do
    local inv = newest[balance[1]]
    balance[8] = inv and inv.trace or ''
  end
end
