
local function latest_first(a, b)
  if a.expires ~= b.expires then
    return a.expires > b.expires
  end
  return a.id > b.id
end

-- What is asked of an index at one time. Few donors satisfy most.
local CHUNK = 4

-- candidates goes through a domain's invocations that an index has, or will have when
-- this call is saved, the last to end first: each call of it returns the next id.
local function candidates(node, index, resource, domain, least_expires)
  local changed_before, changed, position = {}, {}, 1
  for id, inv in pairs(node.changed) do
    changed_before[id] = true
    if not inv.gone and inv.domain == domain and inv.expires >= least_expires then
      local has = inv.spare[resource] > 0
      if index == 'hungry' then
        has = inv.want[resource] > inv.borrowed[resource]
      end
      if has then
        changed[#changed + 1] = {id = id, expires = inv.expires}
      end
    end
  end
  if changed[2] then
    table.sort(changed, latest_first)
  end

  local key, prefix, entries, at, offset = node.key[index][resource], member(domain, ''), nil, 1, 0
  local stored = nil -- the next one of the index; false when there are no more
  local function next_stored()
    repeat
      if not entries or (at > #entries and #entries == 2 * CHUNK) then
        entries = call('ZREVRANGEBYSCORE', key, '+inf', least_expires, 'WITHSCORES', 'LIMIT', offset, CHUNK)
        at, offset = 1, offset + CHUNK
      end
      local entry, score = entries[at], entries[at + 1]
      at = at + 2
      if not entry then
        return false
      end
      if string.sub(entry, 1, #prefix) == prefix then
        local id = string.sub(entry, #prefix + 1)
        if not changed_before[id] then
          return {id = id, expires = tonumber(score)}
        end
      end
    until false
  end

  return function()
    if stored == nil then
      stored = next_stored()
    end
    local first = changed[position]
    if first and (not stored or latest_first(first, stored)) then
      position = position + 1
      return first.id
    end
    if stored then
      local id = stored.id
      stored = nil
      return id
    end
  end
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
local function take(node, id, resource)
  local inv = look(node, id)
  if not floor_of(node, inv.pod) then
    return
  end
  local want = math.min(inv.want[resource] - inv.borrowed[resource], node.lendable[resource] - node.on_loan[resource])
  if want <= 0 then
    return
  end
  for donor_id in candidates(node, 'surplus', resource, inv.domain, node.now + inv.least_remaining) do
    -- A donor is the only one in its pod: only itself is to be left out.
    local donor = look(node, donor_id)
    local amount = math.min(want, donor.spare[resource])
    if amount > 0 and donor_id ~= id then
      change(node, donor_id)
      donor.spare[resource] = donor.spare[resource] - amount
      lend(node, donor_id, id, resource, amount)
      want = want - amount
      if want == 0 then
        return
      end
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
      for id in candidates(node, 'hungry', resource, domain, node.now + 1) do
        if node.on_loan[resource] >= node.lendable[resource]
          or not candidates(node, 'surplus', resource, domain, node.now + 1)() then
          break
        end
        local inv = look(node, id)
        if inv.expires >= node.now + inv.least_remaining then
          take(node, id, resource)
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
  local now = node.now
  if now - node.pruned >= PRUNE_EVERY_MS or now < node.pruned then
    call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', now)
    node.pruned = now
  end
  call('ZADD', node.key.tombstones, now + node.lease_ms, id)
end

local function leave_pod(node, id, inv)
  if inv.alone then
    call('HDEL', node.key.pods, inv.pod)
    return
  end
  local others = {}
  for other in string.gmatch(call('HGET', node.key.pods, inv.pod) or '', '[^\n]+') do
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
  node.changed[id] = inv
  leave_pod(node, id, inv)
  bury(node, id)
  return freed
end

-- release_owned ends what the owners have.
local function release_owned(node, owners)
  widen(node)
  local domains = {}
  for _, id in ipairs(call('HKEYS', node.key.invocations)) do
    local inv = id ~= PLACEHOLDER and look(node, id)
    if inv and owners[inv.owner] and release(node, id) then
      domains[inv.domain] = true
    end
  end
  feed(node, domains)
end

-- lapse comes before anything that renews the owner's lease: what has run out in an
-- outage must not come back to life after it. It says whether the lease had run out.
local function lapse(node, owner, lease)
  if not lease or tonumber(lease) + node.lease_ms > node.now then
    return false
  end
  release_owned(node, {[owner] = true})
  return true
end
