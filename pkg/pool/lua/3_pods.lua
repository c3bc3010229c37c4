
-- list and unlist keep the domains' lists: a pod is on that of the donors while there is
-- something of it in the pool, an invocation on that of the borrowers when it wants
-- something.
local function list(node, side, who)
  local domain = node.domains[who.domain]
  if not domain then
    domain = {donors = {}, borrowers = {}, on_loan = {0, 0}}
    node.domains[who.domain], node.domains_count = domain, node.domains_count + 1
  end
  insert(domain[side], who)
end

local function unlist(node, side, who)
  local domain = node.domains[who.domain]
  remove(domain[side], who)
  if not (domain.donors[1] or domain.borrowers[1]) then
    node.domains[who.domain], node.domains_count = nil, node.domains_count - 1
  end
end

-- least_owed is what a pod is owed, of which all in it are to say the same.
local function least_owed(here, resource)
  if here.idle then
    return here.idle.allocation[resource]
  end
  local owed = here[1].allocation[resource]
  for i = 2, #here do
    owed = math.min(owed, here[i].allocation[resource])
  end
  return owed
end

-- lendable is the most that a pod may lend, so that it keeps what it must. A limit of 0
-- is none at all.
local function lendable(node, here, resource)
  local least = resource == MEMORY and node.floors[here.id] or 0
  return math.max(least_owed(here, resource) - math.max(least, 1), 0)
end

-- How many of an owner's are in a pod unseen, the highest Number there that counted or was
-- counted, and until when it is taken that they are there, or 0 while that is not known. Those
-- that are for much longer than any are were before the clock went back.
local UNSEEN_MOST_MS = 10 * 60 * 1000

local function unseen_forgotten(u, now)
  return u.till ~= 0 and (u.till <= now or now + 2 * UNSEEN_MOST_MS < u.till)
end

local function unseen_in(node, pod, owner)
  local by_owner = node.unseen[pod]
  local u = by_owner and by_owner[owner]
  return u and not unseen_forgotten(u, node.now) and u or nil
end

local function set_unseen(node, pod, owner, u)
  local by_owner = node.unseen[pod] or {}
  by_owner[owner] = u
  node.unseen[pod] = next(by_owner) and by_owner or nil
end

local function has_unseen(node, pod)
  local by_owner = node.unseen[pod]
  if by_owner then
    for _, u in pairs(by_owner) do
      if not unseen_forgotten(u, node.now) then
        return true
      end
    end
  end
  return false
end

-- count takes in what an invocation that is in its pod says of the others there. Begins may
-- arrive in another order than that in which they were sent: one that a later one has counted
-- already is unseen no more.
local function count(node, here, inv, others)
  local u = unseen_in(node, inv.pod, inv.owner)
  if u and inv.number < u.number then
    u.count = u.count - 1
  else
    for _, other in ipairs(here) do
      if other ~= inv and other.owner == inv.owner and other.number <= inv.number then
        others = others - 1
      end
    end
    u = {count = others, number = inv.number, till = 0}
  end
  set_unseen(node, inv.pod, inv.owner, u.count > 0 and u or nil)
end

-- note_unseen counts one that has lapsed.
local function note_unseen(node, inv)
  local u = unseen_in(node, inv.pod, inv.owner) or {count = 0, number = 0, till = 0}
  u.count, u.number = u.count + 1, math.max(u.number, inv.number)
  u.till = math.max(u.till, node.now + UNSEEN_MOST_MS)
  set_unseen(node, inv.pod, inv.owner, u)
end

-- Whose the unseen are in a pod of which nobody's next Begin tells: no owner has this name.
local NOBODY = ''

-- note_computing notes that a pod may compute for a client that went away: once for however many.
local function note_computing(node, pod)
  local u = unseen_in(node, pod, NOBODY)
  local till = math.max(u and u.till or 0, node.now + UNSEEN_MOST_MS)
  set_unseen(node, pod, NOBODY, {count = 1, number = 0, till = till})
  local here = node.in_pod[pod]
  for i = 1, here and #here or 0 do
    here[i].alone = false
  end
end

-- left_over is what those in a pod leave of what it is owed: what the only one can
-- spare, and of several no more than each could and all together do not need. Of many it
-- need not ask all: a few need all that there is.
local function left_over(node, here, resource)
  local count, idle = #here, here.idle
  if idle then
    local left = resource == CPU and not has_unseen(node, here.id) and idle.cpu or 0
    return left > 0 and math.min(left, lendable(node, here, CPU)) or 0
  end
  local left = count > 0 and here[1].surplus[resource] or 0
  if left == 0 or has_unseen(node, here.id) then
    return 0
  end
  if count > 1 then
    local owed, needs = here[1].allocation[resource], 0
    for _, inv in ipairs(here) do
      if count > inv.concurrency then
        return 0
      end
      owed, needs = math.min(owed, inv.allocation[resource]), needs + inv.need[resource]
      left = math.min(left, inv.surplus[resource], owed - needs)
      if left <= 0 then
        return 0
      end
    end
  end
  return math.min(left, lendable(node, here, resource))
end

-- settle comes after one has joined or left a pod. It ends loans as far as those in it
-- need what is on loan, and says whether there is something to lend or a want unmet.
local function settle(node, here)
  local ended = false
  for resource = CPU, MEMORY do
    local left, lent = left_over(node, here, resource), here.lent[resource]
    if lent > left then
      take_back(node, here, resource, lent - left)
      ended, lent = true, left
    end
    if here.spare[resource] ~= left - lent then
      if here.spare == NOTHING then
        here.spare = {0, 0}
      end
      here.spare[resource] = left - lent
    end
  end
  local spares = not is_nothing(here.spare)
  local puts = spares or not is_nothing(here.lent)
  local expires = 0
  if puts and here.idle then
    expires = here.idle.till
  elseif puts then
    -- Until the last of them ends the pod needs no more than now, unless another begins.
    for _, inv in ipairs(here) do
      expires = math.max(expires, inv.expires)
    end
  end
  if here.listed and not (puts and expires == here.expires) then
    unlist(node, 'donors', here)
    here.listed = false
  end
  here.expires = expires
  if puts and not here.listed then
    list(node, 'donors', here)
    here.listed = true
  end
  return ended or spares
end

-- enter has a pod lend in another domain from now on, and ends what it has on loan in the one
-- before, where others lend to those who lose it with the next Heartbeat.
local function enter(node, here, domain)
  for resource = CPU, MEMORY do
    if here.lent[resource] > 0 then
      take_back(node, here, resource, here.lent[resource])
    end
  end
  if here.listed then
    unlist(node, 'donors', here)
    here.listed = false
  end
  here.domain = domain
end

-- join_pod makes an invocation one of its pod's, and says what settle does.
local function join_pod(node, inv, others)
  local here = node.in_pod[inv.pod]
  local was_idle = here and here.idle
  if not here then
    here = {
      id = inv.pod, domain = inv.domain, expires = inv.expires,
      listed = false, spare = NOTHING, lent = NOTHING, borrowers = NOTHING,
    }
    node.in_pod[inv.pod] = here
  else
    if here.domain ~= inv.domain then
      enter(node, here, inv.domain)
    end
    if not was_idle then
      here[1].alone, inv.alone = false, false -- and so are the others
    end
  end
  here.idle = nil
  here[#here + 1] = inv
  if here[2] or others > 0 or node.unseen[inv.pod] then
    count(node, here, inv, others)
    inv.alone = inv.alone and not has_unseen(node, inv.pod)
  end
  if not (here[2] or was_idle) then
    return inv.surplus ~= NOTHING and settle(node, here)
  end
  local moved = settle(node, here)
  if not is_nothing(here.lent) then
    inv.most_lent = {here.lent[CPU], here.lent[MEMORY]}
    if was_idle then
      move(node, inv.pod, IDLE, -1)
    end
  end
  return moved
end

-- lapse_unseen has those lapse that are unseen in pods which may be gone: with nothing known in them, and
-- which take no part. Nobody begins anything more there that would tell of them.
local function lapse_unseen(node)
  for pod, by_owner in pairs(node.unseen) do
    if not (node.floors[pod] or node.in_pod[pod]) then
      for _, u in pairs(by_owner) do
        if u.till == 0 then
          u.till = node.now + UNSEEN_MOST_MS
        end
      end
    end
  end
end

-- rest ends what has lapsed in a pod.
local function rest(node, pod)
  for owner, u in pairs(node.unseen[pod] or {}) do
    if u.till ~= 0 then
      set_unseen(node, pod, owner, nil)
    end
  end
  local here = node.in_pod[pod]
  if here then
    settle(node, here)
  end
end

-- drop_pod forgets a pod with nothing in it, and says what settle does.
local function drop_pod(node, here)
  node.touched = true
  if here.idle and not is_nothing(here.lent) then
    move(node, here.id, IDLE, -1)
  end
  here.idle = nil
  node.in_pod[here.id] = nil
  return here.listed and settle(node, here)
end

-- How long an idle donor lends to those who begin to borrow.
local IDLE_MOST_MS = 60 * 1000

-- leave_pod is the opposite of join_pod. What lapsed may still run, and when it idles the pod is
-- an idle donor from now on.
local function leave_pod(node, inv, lapsed, idles)
  local here = node.in_pod[inv.pod]
  for i, other in ipairs(here) do
    if other == inv then
      table.remove(here, i)
      break
    end
  end
  if lapsed then
    note_unseen(node, inv)
  end
  if not here[1] then
    if not idles then
      return drop_pod(node, here)
    end
    here.idle = {
      owner = inv.owner, func = inv.func, allocation = inv.allocation, cpu = inv.idle_cpu, till = node.now + IDLE_MOST_MS,
    }
    if not is_nothing(here.lent) then
      move(node, here.id, IDLE, 1)
    end
  end
  return settle(node, here)
end

-- An end stands for one lease time, whatever was known of the invocation: a Begin
-- that arrives late or twice must not bring it to life with nobody to end it. Of one
-- whose Begins were all answered none can arrive, and most are so. One lease time
-- is long enough for a Begin that a hung Redis still has in a socket's buffer: its
-- End is repeated until it is answered, so that Redis runs again by then, and all
-- that had come in meanwhile runs within moments of it.
local function bury(node, id)
  node.tombstones[id] = node.now + node.lease_ms
end

local function is_buried(node, id)
  local till = node.tombstones[id]
  return till and till > node.now
end

-- release ends an invocation, and says whether there is something to lend or a want
-- unmet after it.
local function release(node, inv, lapsed, answered, idles)
  local moved = give_back(node, inv)
  moved = leave_pod(node, inv, lapsed, idles) or moved
  if inv.want ~= NOTHING then
    unlist(node, 'borrowers', inv)
  end
  node.begun[inv.id] = nil
  node.begun_count, node.touched = node.begun_count - 1, true
  if not answered then
    bury(node, inv.id)
  end
  if inv.cpu_time then
    node.rate = node.rate - inv.rate
    if lapsed then
      note_lapsed(node, inv.pod)
    end
  end
  return moved
end

-- lapse ends what the owners have whose leases have run out, of those named. It comes
-- before anything that renews a lease: what has run out in an outage must not come
-- back to life after it.
local function lapse(node, owners)
  local lapsed = {}
  for owner in pairs(owners) do
    local renewed = node.leases[owner]
    if renewed and renewed + node.lease_ms <= node.now then
      node.leases[owner] = nil
      lapsed[owner] = true
    end
  end
  if not next(lapsed) then
    return
  end
  local over, domains = {}, {}
  for _, inv in pairs(node.begun) do
    if lapsed[inv.owner] then
      over[#over + 1] = inv
    end
  end
  for _, inv in ipairs(over) do
    local here = node.in_pod[inv.pod]
    if release(node, inv, true) then
      domains[inv.domain], domains[here.domain] = true, true
    end
  end
  for _, here in pairs(node.in_pod) do
    if here.idle and lapsed[here.idle.owner] and drop_pod(node, here) then
      domains[here.domain] = true
    end
  end
  -- They may be alive, and cut off, so that what they have in pods does not end with it.
  for _, by_owner in pairs(node.unseen) do
    for owner in pairs(lapsed) do
      local u = by_owner[owner]
      if u and u.till == 0 then
        u.till = node.now + UNSEEN_MOST_MS
      end
    end
  end
  feed(node, domains)
end
