
-- latest_first orders by predicted end, then by ID. A pod's ID is its name.
local function latest_first(a, b)
  if a.expires ~= b.expires then
    return a.expires > b.expires
  end
  return a.id > b.id
end

-- insert and remove keep a list in that order.
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

-- note_lent updates the most that a pod has had on loan while each of its invocations was in it.
local function note_lent(here, resource, lent)
  for _, inv in ipairs(here) do
    if inv.most_lent == NOTHING then
      inv.most_lent = {0, 0}
    end
    if lent > inv.most_lent[resource] then
      inv.most_lent[resource] = lent
    end
  end
end

-- lend raises the loan from a pod to a borrower; a negative amount lowers it. Until its first loan,
-- each side shares NOTHING.
local function lend(node, donor, borrower, resource, amount)
  local on_loan = node.domains[donor.domain].on_loan
  on_loan[resource] = on_loan[resource] + amount
  node.on_loan[resource] = node.on_loan[resource] + amount

  if donor.lent == NOTHING then
    donor.lent, donor.borrowers = {0, 0}, {}
  end
  local lent = donor.lent[resource] + amount
  donor.lent[resource] = lent
  if amount > 0 then
    note_lent(donor, resource, lent)
  end
  move(node, donor.id, 2 + resource, amount)

  if borrower.borrowed == NOTHING then
    borrower.borrowed, borrower.most_borrowed, borrower.donors = {0, 0}, {0, 0}, {}
  end
  local borrowed = borrower.borrowed[resource] + amount
  borrower.borrowed[resource] = borrowed
  if borrowed > borrower.most_borrowed[resource] then
    borrower.most_borrowed[resource] = borrowed
  end
  move(node, borrower.pod, resource, amount)
  if resource == CPU and amount > 0 then
    node.raised[borrower.pod] = true
  end

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

-- take_back ends the given amount of a pod's loans. The borrower that ends first loses its loan
-- first.
local function take_back(node, here, resource, amount)
  local borrowers = {}
  for borrower in pairs(here.borrowers) do
    borrowers[#borrowers + 1] = borrower
  end
  if amount < here.lent[resource] then
    table.sort(borrowers, latest_first)
  end
  for i = #borrowers, 1, -1 do
    local back = math.min(amount, borrowers[i].donors[here][resource])
    if back > 0 then
      lend(node, here, borrowers[i], resource, -back)
      amount = amount - back
    end
  end
end

-- forfeit takes all of a resource that a pod put into the pool out again, for as long as any
-- invocation that is in the pod now stays there, and returns what was on loan.
local function forfeit(node, here, resource)
  for _, inv in ipairs(here) do
    if inv.surplus[resource] > 0 then
      inv.surplus = resource == CPU and volume(0, inv.surplus[MEMORY]) or volume(inv.surplus[CPU], 0)
    end
  end
  local lent = here.lent[resource]
  if lent > 0 then
    take_back(node, here, resource, lent)
  end
  if here.spare[resource] > 0 then
    here.spare[resource] = 0
  end
  return lent
end

-- give_back ends all loans to an invocation, and says whether there were any.
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

-- pays says whether a loan to an invocation may pay: without it, the invocation has long enough to
-- go, or has outlived its prediction by as long, so that the prediction no longer tells when it
-- ends. A loan is worth the time that it takes off the duration without it.
local function pays(node, inv)
  return math.abs(inv.without_loan - node.now) >= inv.least_remaining
end

-- spare_in returns how much of a resource the donors of a domain have that is not on loan. On a
-- node on which more is wanted than there is, that is nothing most of the time, and callers need
-- not search again for each borrower.
local function spare_in(domain, resource)
  local sum = 0
  for _, donor in ipairs(domain.donors) do
    sum = sum + donor.spare[resource]
  end
  return sum
end

-- claims says whether an invocation in a domain wants more of a resource and the domain has some
-- for it.
local function claims(node, domain, resource)
  if spare_in(domain, resource) == 0 then
    return false
  end
  for _, inv in ipairs(domain.borrowers) do
    if inv.want[resource] > inv.borrowed[resource] and node.floors[inv.pod] and pays(node, inv) then
      local least_expires = node.now + inv.least_remaining
      for _, donor in ipairs(domain.donors) do
        if donor.expires < least_expires then
          break
        end
        if donor.spare[resource] > 0 and donor.id ~= inv.pod then
          return true
        end
      end
    end
  end
  return false
end

-- part returns the most that a domain may have on loan while others want some, and how many domains
-- other than the named one do. Domains share what is lendable equally. A domain that has less and
-- wants no more leaves the rest to the others.
local function part(node, name, resource)
  local content, sharing, wanting, left = {}, 0, 0, node.lendable[resource]
  for other, domain in pairs(node.domains) do
    local claiming = other ~= name and claims(node, domain, resource)
    if claiming then
      wanting = wanting + 1
    end
    if claiming or other == name then
      sharing = sharing + 1
    elseif domain.on_loan[resource] > 0 then
      sharing, content[#content + 1] = sharing + 1, domain.on_loan[resource]
    end
  end
  table.sort(content)
  for _, has in ipairs(content) do
    if has * sharing > left then
      break
    end
    left, sharing = left - has, sharing - 1
  end
  return math.floor(left / math.max(sharing, 1)), wanting
end

-- part_of returns how much of what it wants a domain may borrow, considering the other domains.
local function part_of(node, name, resource, want)
  local own = node.domains[name].on_loan[resource]
  if own + want <= math.floor(node.lendable[resource] / node.domains_count) then
    return want
  end
  local most, others = part(node, name, resource)
  if others == 0 or most - own >= want then
    return want
  end
  node.capped = true
  return most - own
end

-- shrink ends the given amount of loans to an invocation. The donors that end first get theirs back
-- first.
local function shrink(node, inv, resource, amount)
  local donors = node.domains[inv.domain].donors
  for i = #donors, 1, -1 do
    local loan = inv.donors[donors[i]]
    local back = loan and math.min(amount, loan[resource]) or 0
    if back > 0 then
      lend(node, donors[i], inv, resource, -back)
      donors[i].spare[resource], amount = donors[i].spare[resource] + back, amount - back
    end
  end
end

-- even_out takes CPU back from domains that came to have more than their part on loan while nobody
-- else wanted any, and leaves it to domains that want it now. The borrowers that end first lose
-- theirs first. The caller feeds all domains next. Memory on loan may be in use, and stays.
local function even_out(node)
  local most = part(node, nil, CPU)
  local lacking = node.on_loan[CPU] - node.lendable[CPU]
  local wanted = false
  for _, domain in pairs(node.domains) do
    if domain.on_loan[CPU] < most and claims(node, domain, CPU) then
      wanted, lacking = true, lacking + most - domain.on_loan[CPU]
    end
  end
  if not wanted or lacking <= 0 then
    return
  end
  for _, domain in pairs(node.domains) do
    local borrowers = domain.borrowers
    for i = #borrowers, 1, -1 do
      local excess = domain.on_loan[CPU] - most
      if excess <= 0 then
        break
      end
      shrink(node, borrowers[i], CPU, excess)
    end
  end
end

-- take lends an invocation what it still wants, from the donors of its domain that last as long as
-- it needs.
local function take(node, inv, resource)
  if not node.floors[inv.pod] then
    return
  end
  local want = math.min(inv.want[resource] - inv.borrowed[resource], node.lendable[resource] - node.on_loan[resource])
  if want <= 0 then
    return
  end
  want = part_of(node, inv.domain, resource, want)
  if want <= 0 then
    return
  end
  local least_expires = node.now + inv.least_remaining
  for _, donor in ipairs(node.domains[inv.domain].donors) do
    if donor.expires < least_expires then
      return
    end
    local amount = math.min(want, donor.spare[resource])
    if amount > 0 and donor.id ~= inv.pod then
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
  if not here or not here.donors[1] or not here.borrowers[1] then
    return
  end
  for resource = CPU, MEMORY do
    local left, lent = spare_in(here, resource), here.on_loan[resource]
    for _, inv in ipairs(here.borrowers) do
      if here.on_loan[resource] - lent == left then
        break
      end
      if pays(node, inv) then
        take(node, inv, resource)
      end
    end
  end
end

-- feed runs after everything that may leave surplus in the pool or a want unmet. Borrowers in the
-- given domains take what they still want, the last to end first. There may not be enough for all
-- domains: one's part grows when another has all that it wants, and the domains take turns to be
-- first.
local function feed(node, domains)
  if not is_open(node) then
    return
  end
  local names = {}
  for name in pairs(domains) do
    if node.domains[name] and node.domains[name].borrowers[1] then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  local first, served = 1, nil
  while names[first] and names[first] <= node.turn do
    first = first + 1
  end
  repeat
    node.capped = false
    local again = false
    for i = first, first + #names - 1 do
      local name, cpu, memory = names[(i - 1) % #names + 1], node.on_loan[CPU], node.on_loan[MEMORY]
      feed_domain(node, name)
      if node.on_loan[CPU] ~= cpu or node.on_loan[MEMORY] ~= memory then
        again, served = true, served or name
      end
    end
  until not (again and node.capped)
  if names[2] then
    node.turn = served or node.turn
  end
end
