
-- list and unlist keep the lists of the domains: a pod is among the donors while it has something
-- in the pool, and an invocation among the borrowers while it wants something.
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

-- least_owed returns what a pod is owed. All invocations in it should say the same; the least
-- counts.
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

-- lendable returns the most that a pod may lend and still keep what it must. A limit of 0 means no
-- limit.
local function lendable(node, here, resource)
  local least = resource == MEMORY and node.floors[here.id] or 0
  return math.max(least_owed(here, resource) - math.max(least, 1), 0)
end

-- An unseen record says how many of an owner's invocations are in a pod unseen (count), the highest
-- Number there that counted or was counted (number), and until when the pool assumes that they are
-- there, or 0 while that is not known (till). Once they have lapsed it says since when, or by when
-- they had begun (at). A till much further ahead than any can be is from before the clock went back.

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

-- count takes in what an invocation, which is in its pod now, says about the others there. Begins
-- may arrive out of order: an invocation that a later Begin has already counted is no longer
-- unseen.
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

-- lapse_at notes in an unseen record what has lapsed since a time, or had begun by then.
local function lapse_at(node, u, at)
  u.till, u.at = math.max(u.till, node.now + UNSEEN_MOST_MS), math.max(u.at or at, at)
end

-- note_unseen counts an invocation that has lapsed.
local function note_unseen(node, inv)
  local u = unseen_in(node, inv.pod, inv.owner) or {count = 0, number = 0, till = 0}
  u.count, u.number = u.count + 1, math.max(u.number, inv.number)
  lapse_at(node, u, node.now)
  set_unseen(node, inv.pod, inv.owner, u)
end

-- The owner of unseen invocations that no owner's next Begin reports. No owner has this name.
local NOBODY = ''

-- note_computing notes that something which had begun by a time may go on in a pod, for a client
-- that went away or unknown to the pool. It counts as one invocation, however many there are.
local function note_computing(node, pod, by)
  local u = unseen_in(node, pod, NOBODY) or {count = 1, number = 0, till = 0}
  lapse_at(node, u, by)
  set_unseen(node, pod, NOBODY, u)
  local here = node.in_pod[pod]
  for i = 1, here and #here or 0 do
    here[i].alone = false
  end
end

-- left_over returns what the invocations in a pod leave of what it is owed: what a single one can
-- spare, and with several, no more than each of them can spare and than all together do not need.
-- With many it need not ask all: a few need everything.
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

-- settle runs after an invocation has joined or left a pod. It ends loans as far as the invocations
-- in the pod need them back, and says whether there is something to lend or a want unmet.
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
    -- Until the last of them ends, the pod needs no more than now, unless another begins.
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

-- enter moves a pod to another domain, and ends its loans in the old one. Other donors there lend
-- to the borrowers that lose them with the next Heartbeat.
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

-- join_pod adds an invocation to its pod, and says what settle does.
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
      here[1].alone, inv.alone = false, false -- it already is for the others
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

-- lapse_unseen lets unseen invocations lapse in pods that may be gone, which have no known
-- invocation and take no part: no Begin there will report them any more.
local function lapse_unseen(node)
  for pod, by_owner in pairs(node.unseen) do
    if not (node.floors[pod] or node.in_pod[pod]) then
      for _, u in pairs(by_owner) do
        if u.till == 0 then
          lapse_at(node, u, node.now)
        end
      end
    end
  end
end

-- rest ends what had lapsed by a time in a pod that has been at rest since. What lapsed later may
-- not have shown when the agent looked.
local function rest(node, pod, since)
  for owner, u in pairs(node.unseen[pod] or {}) do
    if u.till ~= 0 then
      u.at = math.min(u.at, node.now) -- the clock may have gone back
      if u.at <= since then
        set_unseen(node, pod, owner, nil)
      end
    end
  end
  local here = node.in_pod[pod]
  if here then
    settle(node, here)
  end
end

-- drop_pod forgets a pod with no invocation in it, and says what settle does.
local function drop_pod(node, here)
  node.touched = true
  if here.idle and not is_nothing(here.lent) then
    move(node, here.id, IDLE, -1)
  end
  here.idle = nil
  node.in_pod[here.id] = nil
  return here.listed and settle(node, here)
end

-- How long an idle donor lends to new borrowers.
local IDLE_MOST_MS = 60 * 1000

-- leave_pod is the opposite of join_pod. An invocation that lapsed may still run. With idles, a pod
-- that is left empty becomes an idle donor.
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

-- An End stands for a lease time, whatever was known about the invocation: a Begin that arrives
-- late or twice must not revive it with nobody to end it. When all its Begins were answered, as is
-- usual, none can arrive. One lease time is long enough for a Begin that a hung Redis still has in
-- a socket's buffer: the End is repeated until it is answered, so that Redis runs again by then,
-- and everything that had come in meanwhile runs within moments of it. An End is forgotten at the
-- second trim after it.
local function bury(node, id)
  node.buried[id] = true
end

local function is_buried(node, id)
  return node.buried[id] or node.buried_before[id]
end

-- release ends an invocation, and says whether that leaves something to lend or a want unmet.
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

-- lapse ends what the given owners have whose leases have expired. It runs before anything that
-- renews a lease: a lease that expired in an outage must not come back to life after it.
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
  -- The owners may be alive but cut off, so that what they have in pods does not end with the
  -- lease.
  for _, by_owner in pairs(node.unseen) do
    for owner in pairs(lapsed) do
      local u = by_owner[owner]
      if u and u.till == 0 then
        lapse_at(node, u, node.now)
      end
    end
  end
  feed(node, domains)
end
