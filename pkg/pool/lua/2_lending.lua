
-- latest_first orders by predicted end, and what ends at the same moment by ID.
local function latest_first(a, b)
  if a.expires ~= b.expires then
    return a.expires > b.expires
  end
  return a.id > b.id
end

-- insert and remove keep a list of invocations in that order.
local function insert(list, inv)
  local low, high = 1, #list + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if latest_first(list[middle], inv) then
      low = middle + 1
    else
      high = middle
    end
  end
  table.insert(list, low, inv)
end

local function remove(list, inv)
  local low, high = 1, #list
  while low < high do
    local middle = math.floor((low + high) / 2)
    if latest_first(list[middle], inv) then
      low = middle + 1
    else
      high = middle
    end
  end
  table.remove(list, low)
end

-- own makes room for what an invocation deals: until then it shares nothing.
local function own(inv)
  if not inv.dealt then
    inv.dealt = true
    inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed = {0, 0}, {0, 0}, {0, 0}, {0, 0}
    inv.donors, inv.borrowers = {}, {}
  end
end

-- move notes that the balance of a pod changes.
local function move(node, pod, index, amount)
  local moved = node.moved
  if not moved then
    moved = {}
    node.moved = moved
  end
  local by = moved[pod]
  if not by then
    by = {0, 0, 0, 0} -- borrowed, lent
    moved[pod] = by
  end
  by[index] = by[index] + amount
end

-- lend raises the loan from donor to borrower; a negative amount lowers it.
local function lend(node, donor, borrower, resource, amount)
  own(donor)
  own(borrower)
  node.on_loan[resource] = node.on_loan[resource] + amount

  local lent = donor.lent[resource] + amount
  donor.lent[resource] = lent
  if lent > donor.most_lent[resource] then
    donor.most_lent[resource] = lent
  end
  move(node, donor.pod, 2 + resource, amount)

  local borrowed = borrower.borrowed[resource] + amount
  borrower.borrowed[resource] = borrowed
  if borrowed > borrower.most_borrowed[resource] then
    borrower.most_borrowed[resource] = borrowed
  end
  move(node, borrower.pod, resource, amount)

  local loan = borrower.donors[donor]
  if not loan then
    loan = {0, 0}
    borrower.donors[donor] = loan
    donor.borrowers[borrower] = true
  end
  loan[resource] = loan[resource] + amount
  if is_nothing(loan) then
    borrower.donors[donor] = nil
    donor.borrowers[borrower] = nil
  end
end

-- withdraw takes all of a resource that an invocation put into the pool out of it, and
-- returns what was on loan.
local function withdraw(node, inv, resource)
  local lent = inv.lent[resource]
  if lent > 0 then
    for borrower in pairs(inv.borrowers) do
      local amount = borrower.donors[inv][resource]
      if amount > 0 then
        lend(node, inv, borrower, resource, -amount)
      end
    end
  end
  if inv.spare[resource] > 0 then
    inv.spare[resource] = 0
  end
  return lent
end

-- withdraw_all withdraws every resource, and says whether any was on loan.
local function withdraw_all(node, inv)
  local cpu_lent, memory_lent = withdraw(node, inv, CPU), withdraw(node, inv, MEMORY)
  return cpu_lent + memory_lent > 0
end

-- give_back ends what an invocation has borrowed, and says whether it had.
local function give_back(node, inv)
  if is_nothing(inv.borrowed) then
    return false
  end
  for donor, loan in pairs(inv.donors) do
    local cpu, memory = loan[CPU], loan[MEMORY]
    if cpu > 0 then
      lend(node, donor, inv, CPU, -cpu)
      donor.spare[CPU] = donor.spare[CPU] + cpu
    end
    if memory > 0 then
      lend(node, donor, inv, MEMORY, -memory)
      donor.spare[MEMORY] = donor.spare[MEMORY] + memory
    end
  end
  return true
end

-- take lends an invocation what it still wants, from the donors of its domain that
-- last as long as it needs.
local function take(node, inv, resource)
  if not node.floors[inv.pod] then
    return
  end
  local want = math.min(inv.want[resource] - inv.borrowed[resource], node.lendable[resource] - node.on_loan[resource])
  if want <= 0 then
    return
  end
  local least_expires = node.now + inv.least_remaining
  for _, donor in ipairs(node.domains[inv.domain].donors) do
    if donor.expires < least_expires then
      return
    end
    -- A donor is the only one in its pod: only itself is to be left out.
    local amount = math.min(want, donor.spare[resource])
    if amount > 0 and donor ~= inv then
      donor.spare[resource] = donor.spare[resource] - amount
      lend(node, donor, inv, resource, amount)
      want = want - amount
      if want == 0 then
        return
      end
    end
  end
end

local function feed_domain(node, domain)
  local here = node.domains[domain]
  if not here or not here.donors[1] then
    return
  end
  for _, inv in ipairs(here.borrowers) do
    if inv.expires >= node.now + inv.least_remaining then
      take(node, inv, CPU)
      take(node, inv, MEMORY)
    end
  end
end

-- feed comes after all that may leave surplus in the pool or a want unmet. Those of
-- the domains who want more take it, the last to end first. What may be on loan may
-- not be enough for all, so the order of the domains is their names'.
local function feed(node, domains)
  if not node.open then
    return
  end
  local names = {}
  for domain in pairs(domains) do
    names[#names + 1] = domain
  end
  table.sort(names)
  for _, domain in ipairs(names) do
    feed_domain(node, domain)
  end
end

-- An end stands for one lease time, whatever was known of the invocation: a Begin
-- that arrives late or twice must not bring it to life with nobody to end it. That
-- is long enough for a Begin that a hung Redis still has in a socket's buffer: its
-- End is repeated until it is answered, so that Redis runs again by then, and all
-- that had come in meanwhile runs within moments of it.
local function bury(node, id)
  local now = node.now
  node.buried = node.buried + 1
  if node.buried >= PRUNE_EVERY or now - node.pruned >= PRUNE_EVERY_MS or now < node.pruned then
    call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', now)
    node.pruned, node.buried = now, 0
  end
  call('ZADD', node.key.tombstones, now + node.lease_ms, id)
end

-- Who put nothing in and wants nothing is on no list.
local function enlist(node, inv)
  local puts, wants = not is_nothing(inv.spare), not is_nothing(inv.want)
  inv.puts, inv.wants = puts, wants
  if not (puts or wants) then
    return
  end
  local domain = node.domains[inv.domain]
  if not domain then
    domain = {donors = {}, borrowers = {}}
    node.domains[inv.domain] = domain
  end
  if puts then
    insert(domain.donors, inv)
  end
  if wants then
    insert(domain.borrowers, inv)
  end
end

local function delist(node, inv)
  if not (inv.puts or inv.wants) then
    return
  end
  local domain = node.domains[inv.domain]
  if inv.puts then
    remove(domain.donors, inv)
  end
  if inv.wants then
    remove(domain.borrowers, inv)
  end
  if not (domain.donors[1] or domain.borrowers[1]) then
    node.domains[inv.domain] = nil
  end
end

-- release ends an invocation, and says whether a loan ended with it.
local function release(node, inv)
  local freed = false
  if inv.dealt then
    freed = withdraw_all(node, inv)
    freed = give_back(node, inv) or freed
  end
  delist(node, inv)
  node.begun[inv.id] = nil
  node.begun_count = node.begun_count - 1
  local here = node.in_pod[inv.pod]
  here[inv.id] = nil
  if not next(here) then
    node.in_pod[inv.pod] = nil
  end
  bury(node, inv.id)
  return freed
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
    if release(node, inv) then
      domains[inv.domain] = true
    end
  end
  feed(node, domains)
end
