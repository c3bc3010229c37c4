
local function latest_first(a, b)
  if a.expires ~= b.expires then
    return a.expires > b.expires
  end
  return a.id > b.id
end

-- candidates are a domain's invocations that an index has, or will have when this
-- call is saved.
local function candidates(node, index, resource, domain, least_expires)
  local found = {}
  local prefix = member(domain, '')
  local entries = call('ZREVRANGEBYSCORE', node.key[index][resource], '+inf', least_expires, 'WITHSCORES')
  for i = 1, #entries, 2 do
    if string.sub(entries[i], 1, #prefix) == prefix then
      local id = string.sub(entries[i], #prefix + 1)
      if not node.changed[id] then
        found[#found + 1] = {id = id, expires = tonumber(entries[i + 1])}
      end
    end
  end
  for id in pairs(node.changed) do
    local inv = node.invocations[id]
    if not inv.gone and inv.domain == domain and inv.expires >= least_expires then
      local has = inv.spare[resource] > 0
      if index == 'hungry' then
        has = inv.want[resource] > inv.borrowed[resource]
      end
      if has then
        found[#found + 1] = {id = id, expires = inv.expires}
      end
    end
  end
  table.sort(found, latest_first)
  return found
end

local function moved(node, pod)
  local by = node.moved[pod]
  if not by then
    by = {0, 0, 0, 0} -- borrowed, lent
    node.moved[pod] = by
  end
  return by
end

-- lend raises the loan from donor to borrower; a negative amount lowers it.
local function lend(node, donor_id, borrower_id, resource, amount)
  local donor, borrower = change(node, donor_id), change(node, borrower_id)
  node.on_loan[resource] = node.on_loan[resource] + amount

  donor.lent[resource] = donor.lent[resource] + amount
  donor.most_lent[resource] = math.max(donor.most_lent[resource], donor.lent[resource])
  local by = moved(node, donor.pod)
  by[2 + resource] = by[2 + resource] + amount

  borrower.borrowed[resource] = borrower.borrowed[resource] + amount
  borrower.most_borrowed[resource] = math.max(borrower.most_borrowed[resource], borrower.borrowed[resource])
  by = moved(node, borrower.pod)
  by[resource] = by[resource] + amount

  local loan = borrower.donors[donor_id] or {0, 0}
  loan[resource] = loan[resource] + amount
  if is_nothing(loan) then
    borrower.donors[donor_id] = nil
    donor.borrowers[borrower_id] = nil
  else
    borrower.donors[donor_id] = loan
    donor.borrowers[borrower_id] = true
  end
end

-- withdraw takes all of a resource that id put into the pool out of it, and returns
-- what was on loan.
local function withdraw(node, id, resource)
  local inv = look(node, id)
  local lent = inv.lent[resource]
  if lent + inv.spare[resource] == 0 then
    return 0
  end
  change(node, id)
  if lent > 0 then
    for borrower_id in pairs(inv.borrowers) do
      local amount = look(node, borrower_id).donors[id][resource]
      if amount > 0 then
        lend(node, id, borrower_id, resource, -amount)
      end
    end
  end
  inv.spare[resource] = 0
  return lent
end

-- withdraw_all withdraws every resource, and says whether any was on loan.
local function withdraw_all(node, id)
  local cpu_lent, memory_lent = withdraw(node, id, CPU), withdraw(node, id, MEMORY)
  return cpu_lent + memory_lent > 0
end

-- give_back ends what id has borrowed, and says whether it had.
local function give_back(node, id)
  local inv = look(node, id)
  if is_nothing(inv.borrowed) then
    return false
  end
  for donor_id, loan in pairs(inv.donors) do
    for resource, amount in ipairs({loan[CPU], loan[MEMORY]}) do
      if amount > 0 then
        lend(node, donor_id, id, resource, -amount)
        local donor = look(node, donor_id)
        donor.spare[resource] = donor.spare[resource] + amount
      end
    end
  end
  return true
end

-- take lends id what it still wants, from the donors that last as long as it needs.
local function take(node, id, resource, donors)
  local inv = look(node, id)
  if not floor_of(node, inv.pod) then
    return
  end
  local want = math.min(inv.want[resource] - inv.borrowed[resource], node.lendable[resource] - node.on_loan[resource])
  for _, found in ipairs(donors) do
    if want <= 0 or found.expires < node.now + inv.least_remaining then
      return
    end
    -- A donor is the only one in its pod: only itself is to be left out.
    local donor = look(node, found.id)
    local amount = math.min(want, donor.spare[resource])
    if amount > 0 and found.id ~= id then
      change(node, found.id)
      donor.spare[resource] = donor.spare[resource] - amount
      lend(node, found.id, id, resource, amount)
      want = want - amount
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
    for resource = CPU, MEMORY do
      if node.on_loan[resource] < node.lendable[resource] then
        local borrowers = candidates(node, 'hungry', resource, domain, node.now + 1)
        local donors = borrowers[1] and candidates(node, 'surplus', resource, domain, node.now + 1) or {}
        if donors[1] then
          for _, found in ipairs(borrowers) do
            if found.expires >= node.now + look(node, found.id).least_remaining then
              take(node, found.id, resource, donors)
            end
          end
        end
      end
    end
  end
end

-- An end stands for one lease time, whatever was known of the invocation: a Begin
-- that arrives late or twice must not bring it to life with nobody to end it. That
-- is long enough for a Begin that a hung Redis still has in a socket's buffer: its
-- End is repeated until it is answered, so that Redis runs again by then, and all
-- that had come in meanwhile runs within moments of it.
local function bury(node, id)
  call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)
  call('ZADD', node.key.tombstones, node.now + node.lease_ms, id)
end

local function leave_pod(node, id, inv)
  if inv.alone then
    call('HDEL', node.key.pods, inv.pod)
    return
  end
  local others = {}
  for other in string.gmatch(call('HGET', node.key.pods, inv.pod), '[^\n]+') do
    if other ~= id then
      others[#others + 1] = other
    end
  end
  if others[1] then
    call('HSET', node.key.pods, inv.pod, table.concat(others, '\n'))
  else
    call('HDEL', node.key.pods, inv.pod)
  end
end

-- release ends an invocation, and says whether a loan ended with it.
local function release(node, id)
  local inv = look(node, id)
  local freed = not is_nothing(inv.lent) and withdraw_all(node, id)
  freed = give_back(node, id) or freed
  inv.gone = true
  node.changed[id] = true
  leave_pod(node, id, inv)
  bury(node, id)
  return freed
end

-- release_owned ends what the owners have.
local function release_owned(node, owners)
  local domains = {}
  for _, id in ipairs(call('HKEYS', node.key.invocations)) do
    if id ~= PLACEHOLDER and not (node.invocations[id] and node.invocations[id].gone) then
      local inv = look(node, id)
      if owners[inv.owner] and release(node, id) then
        domains[inv.domain] = true
      end
    end
  end
  feed(node, domains)
end

-- lapse comes before anything that renews the owner's lease: what has run out in an
-- outage must not come back to life after it.
local function lapse(node, owner)
  if node.lease and node.lease + node.lease_ms <= node.now then
    release_owned(node, {[owner] = true})
    node.lease = nil
  end
end
