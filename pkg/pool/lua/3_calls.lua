
-- Strikes of the safeguard against one resource of a function: how many, and until
-- when lending is suspended. Those that suspend for longer than any strike does were
-- before the clock went back.
local function forgotten(strikes, now, most_ms)
  return strikes.count == 0 or strikes.till + most_ms <= now or now + most_ms < strikes.till
end

local function suspended_till(node, func, resource, most_ms)
  local strikes = node.struck[func]
  strikes = strikes and strikes[resource]
  if strikes and strikes.till > node.now and not forgotten(strikes, node.now, most_ms) then
    return strikes.till
  end
  return 0
end

local function strike(node, func, resource, least_ms, most_ms)
  local struck = node.struck[func]
  if not struck then
    struck = {{count = 0, till = 0}, {count = 0, till = 0}}
    node.struck[func] = struck
  end
  local strikes = struck[resource]
  if forgotten(strikes, node.now, most_ms) then
    strikes.count = 0
  end
  strikes.till = node.now + math.min(least_ms * 2 ^ math.min(strikes.count, 10), most_ms)
  strikes.count = strikes.count + 1
end

-- lendable is the most that an invocation may lend, so that its pod keeps what it
-- must. A limit of 0 is none at all.
local function lendable(inv, floor)
  return math.max(inv.allocation[CPU] - 1, 0), math.max(inv.allocation[MEMORY] - math.max(floor, 1), 0)
end

-- put_in is what an invocation puts into the pool of its surplus.
local function put_in(node, inv, surplus_cpu, surplus_memory, most_ms)
  local floor = node.floors[inv.pod]
  if surplus_cpu + surplus_memory == 0 or not (node.open and inv.alone and floor) then
    return NOTHING
  end
  local cpu, memory = lendable(inv, floor)
  cpu = suspended_till(node, inv.func, CPU, most_ms) == 0 and math.min(surplus_cpu, cpu) or 0
  memory = suspended_till(node, inv.func, MEMORY, most_ms) == 0 and math.min(surplus_memory, memory) or 0
  return cpu + memory > 0 and {cpu, memory} or NOTHING
end

-- join_pod makes an invocation one of its pod's, and says whether that ended a loan.
local function join_pod(node, inv)
  local here = node.in_pod[inv.pod]
  if not here then
    node.in_pod[inv.pod] = {[inv.id] = inv}
    return false
  end
  local freed = false
  for _, other in pairs(here) do
    freed = withdraw_all(node, other) or freed
    other.alone = false
  end
  inv.alone = false
  here[inv.id] = inv
  return freed
end

local function begin(node, args, every_ms, most_ms, duration_ms, least_ms, cpu, memory, surplus_cpu, surplus_memory, want_cpu, want_memory)
  local owner, id, pod, domain, func, record = args[3], args[4], args[5], args[6], args[7], args[8]
  local now, renewed = node.now, node.leases[owner]
  if renewed and renewed + node.lease_ms <= now then
    lapse(node, {[owner] = true})
    renewed = nil
  end
  local buried_until = call('ZSCORE', node.key.tombstones, id)
  if buried_until and tonumber(buried_until) > now then
    return NOTHING
  end
  local inv = node.begun[id]
  if inv then
    return inv.borrowed
  end
  -- A lease that would not last until its owner's next Renew.
  if not renewed or now - renewed >= every_ms or now < renewed then
    node.leases[owner] = now
  end

  node.begins = node.begins + 1
  inv = {
    id = id, pod = pod, domain = domain, owner = owner, func = func, record = record, number = node.begins,
    expires = now + duration_ms, least_remaining = math.max(least_ms, 1), allocation = {cpu, memory},
    want = want_cpu + want_memory > 0 and {want_cpu, want_memory} or NOTHING,
    alone = true, safeguarded = false, dealt = false, puts = false, wants = false,
    spare = NOTHING, lent = NOTHING, borrowed = NOTHING, most_lent = NOTHING, most_borrowed = NOTHING,
    donors = NOTHING, borrowers = NOTHING,
  }
  node.begun[id] = inv
  node.begun_count = node.begun_count + 1
  local freed = join_pod(node, inv)
  inv.spare = put_in(node, inv, surplus_cpu, surplus_memory, most_ms)
  enlist(node, inv)
  if node.open then
    if inv.wants then
      take(node, inv, CPU)
      take(node, inv, MEMORY)
    end
    if freed or inv.puts then
      feed_domain(node, domain)
    end
  end
  return inv.borrowed
end

-- What ended without a loan.
local POOL_PART = ',"lent":{"cpu_milli":0,"memory_bytes":0},"borrowed":{"cpu_milli":0,"memory_bytes":0}}'

-- A record of an end is made of the parts that the Begin and the End sent, and the
-- pool's. Numbers that Go wrote stay as they are.
local function finish(node, args, late)
  local id, ending = args[3], args[4]
  local inv = node.begun[id]
  if not inv then
    bury(node, id)
    return {0, 0, 0, 0, 0, 0, 0}
  end
  if release(node, inv) and node.open then
    feed_domain(node, inv.domain)
  end
  -- By the time that a late end is heard of, another may have run in the pod.
  local alone = inv.alone and late == 0
  local lent, borrowed = inv.most_lent, inv.most_borrowed
  local pool_part = POOL_PART
  if inv.dealt then
    pool_part = string.format(
      ',"lent":{"cpu_milli":%d,"memory_bytes":%d},"borrowed":{"cpu_milli":%d,"memory_bytes":%d}}',
      lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY])
  end
  call('XADD', node.key.ended, 'MAXLEN', '~', ENDED_LENGTH, '*', 'v', RECORD_VERSION, 'data',
    inv.record .. ending .. (alone and '"alone":true' or '"alone":false')
      .. (inv.safeguarded and ',"safeguarded":true' or ',"safeguarded":false') .. pool_part)
  return {
    1, alone and 1 or 0, inv.safeguarded and 1 or 0,
    lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY],
  }
end

local function renew(node, args)
  local owner = args[3]
  lapse(node, {[owner] = true})
  node.leases[owner] = node.now
  return redis.status_reply('OK')
end

-- take_part makes the pods, which are every first line of the text, those that take
-- part, and ends what the others, and those whose floor has risen, may not have on
-- loan any more.
local function take_part(node, text)
  node.pods_text, node.floors = text, {}
  for pod, floor in string.gmatch(text, '([^\n]+)\n([^\n]+)') do
    node.floors[pod] = tonumber(floor)
  end
  for _, inv in pairs(node.begun) do
    if not node.floors[inv.pod] then
      withdraw_all(node, inv)
      give_back(node, inv)
    end
  end
  for _, inv in pairs(node.begun) do
    local _, most = lendable(inv, node.floors[inv.pod] or 0)
    local room = most - inv.lent[MEMORY]
    if room < 0 then
      withdraw(node, inv, MEMORY)
    elseif inv.spare[MEMORY] > room then
      inv.spare[MEMORY] = room
    end
  end
end

local function heartbeat(node, args, whole, cpu, memory)
  local agent, epoch, text = args[3], args[4], args[5]
  node.whole = whole == 1 and epoch == node.epoch
  node.beat_at, node.agent, node.lendable = node.now, agent, {cpu, memory}
  node.heard, node.open = true, node.whole
  if text ~= node.pods_text then
    take_part(node, text)
  end
  feed(node, node.domains)
  return node.open and 1 or 0
end

local function safeguard(node, args, cpu, memory, least_ms, most_ms)
  local pod, named = args[3], {cpu == 1, memory == 1}
  local revoked = {0, 0}
  for _, inv in pairs(node.in_pod[pod] or {}) do
    -- At most one in a pod has put anything in.
    local found = false
    for resource = CPU, MEMORY do
      if named[resource] and inv.spare[resource] + inv.lent[resource] > 0 then
        found = true
        revoked[resource] = withdraw(node, inv, resource)
        strike(node, inv.func, resource, least_ms, most_ms)
      end
    end
    if found then
      inv.safeguarded = true
      node.woken = pod
      feed(node, {[inv.domain] = true})
      break
    end
  end
  return revoked
end

-- reap ends what the owners have whose leases have run out, and forgets strikes.
local function reap(node, most_ms)
  for owner, renewed in pairs(node.leases) do
    if renewed > node.now then
      -- The clock went back: without this the lease would last as long as that.
      node.leases[owner] = node.now
    end
  end
  lapse(node, node.leases)
  for func, struck in pairs(node.struck) do
    if forgotten(struck[CPU], node.now, most_ms) and forgotten(struck[MEMORY], node.now, most_ms) then
      node.struck[func] = nil
    end
  end
end

local function add(balance, index, v)
  balance[index], balance[index + 1] = balance[index] + v[CPU], balance[index + 1] + v[MEMORY]
end

-- survey returns what donors could lend now, all of it and each, the last to end
-- first, and the balances of the pods.
local function survey(node, entries_most)
  local available, found, pods = {0, 0}, {}, {}
  for _, inv in pairs(node.begun) do
    if inv.expires > node.now and not is_nothing(inv.spare) then
      add(available, 1, inv.spare)
      found[#found + 1] = inv
    end
    if not (is_nothing(inv.lent) and is_nothing(inv.borrowed)) then
      local b = pods[inv.pod] or {inv.pod, 0, 0, 0, 0, 0, 0}
      pods[inv.pod] = b
      add(b, 2, inv.borrowed)
      add(b, 4, inv.lent)
    end
  end
  table.sort(found, latest_first)
  local entries, balances = {}, {}
  for i = 1, math.min(#found, entries_most) do
    local inv = found[i]
    entries[i] = {inv.domain, inv.expires, inv.spare[CPU], inv.spare[MEMORY]}
  end
  for pod, b in pairs(pods) do
    local latest = 0
    for _, inv in pairs(node.in_pod[pod]) do
      if inv.number > latest then
        latest, b[6], b[7] = inv.number, inv.allocation[CPU], inv.allocation[MEMORY]
      end
    end
    balances[#balances + 1] = b
  end
  return available, entries, balances
end

local function suspensions(node, most_ms)
  local list = {}
  for func in pairs(node.struck) do
    local cpu, memory = suspended_till(node, func, CPU, most_ms), suspended_till(node, func, MEMORY, most_ms)
    if cpu + memory > 0 then
      list[#list + 1] = {func, cpu, memory}
    end
  end
  return list
end

local function read(node, _, entries_most, most_ms)
  reap(node, most_ms)
  call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)
  local available, entries, balances = survey(node, entries_most)
  return {
    node.epoch, node.heard and node.agent or '', node.open and 1 or 0,
    node.begun_count, available[CPU], available[MEMORY],
    balances, entries, suspensions(node, most_ms),
  }
end

-- register makes a function of the library; format is that of its numbers.
local function register(name, flags, format, callback)
  local function call_with(first_key, args, lease_ms, now, ...)
    local node = open_node(first_key, lease_ms, now)
    local reply = callback(node, args, ...)
    close_node(node)
    return reply
  end
  redis.register_function{
    function_name = name,
    flags = flags,
    callback = function(keys, args)
      if args[1] ~= VERSION then
        return redis.error_reply('LIBRAVERSION ' .. VERSION)
      end
      return call_with(keys[1], args, struct.unpack(format, args[2]))
    end,
  }
end

-- What only gives back works also when Redis is out of memory, and so does the
-- heartbeat: without it the resizer takes a living agent for dead.
register('libra_begin', {}, '<dddddddddddd', begin)
register('libra_end', {'allow-oom'}, '<ddd', finish)
register('libra_renew', {}, '<dd', renew)
register('libra_heartbeat', {'allow-oom'}, '<ddddd', heartbeat)
register('libra_safeguard', {'allow-oom'}, '<dddddd', safeguard)
register('libra_read', {'allow-oom'}, '<dddd', read)
