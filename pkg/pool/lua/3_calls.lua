
-- Strikes of the safeguard against a function: for each resource how many, and
-- until when lending is suspended.
local STRUCK = '<dddd'

-- Those that suspend for longer than any strike does were before the clock went back.
local function forgotten(count, till, now, most_ms)
  return count == 0 or till + most_ms <= now or now + most_ms < till
end

local function struck_field(func)
  return 'struck:' .. func
end

local function strikes_of(node, func, most_ms)
  local struck = call('HGET', node.key.node, struck_field(func))
  local s = struck and {unpack_struct(STRUCK, struck)} or {0, 0, 0, 0}
  local strikes = {count = {s[1], s[2]}, till = {s[3], s[4]}}
  for resource = CPU, MEMORY do
    if forgotten(strikes.count[resource], strikes.till[resource], node.now, most_ms) then
      strikes.count[resource], strikes.till[resource] = 0, 0
    end
  end
  return strikes
end

-- lendable is the most that an invocation may lend, so that its pod keeps what it
-- must. A limit of 0 is none at all.
local function lendable(allocation, floor)
  return {math.max(allocation[CPU] - 1, 0), math.max(allocation[MEMORY] - math.max(floor, 1), 0)}
end

-- put_in is what a Begin puts into the pool of its surplus.
local function put_in(node, inv, surplus, most_ms)
  if is_nothing(surplus) or not (node.open and inv.alone) then
    return NOTHING
  end
  local floor = floor_of(node, inv.pod)
  if not floor then
    return NOTHING
  end
  local most = lendable(inv.allocation, floor)
  local strikes = strikes_of(node, inv.func, most_ms)
  local put = {0, 0}
  for resource = CPU, MEMORY do
    if strikes.till[resource] <= node.now then
      put[resource] = math.min(surplus[resource], most[resource])
    end
  end
  return put
end

-- A Begin renews a lease that would not last until its owner's next Renew.
local function renew_lease(node, owner, every_ms)
  if not node.lease or node.now - node.lease >= every_ms or node.now < node.lease then
    call('HSET', node.key.node, 'lease:' .. owner, node.now)
  end
end

-- join_pod makes the invocation one of its pod's, and says whether that ended a loan.
local function join_pod(node, id, inv)
  if call('HSETNX', node.key.pods, inv.pod, id) == 1 then
    return false
  end
  local freed = false
  local others = call('HGET', node.key.pods, inv.pod)
  for other in string.gmatch(others, '[^\n]+') do
    if look(node, other).alone then
      freed = withdraw_all(node, other)
      change(node, other).alone = false
    end
  end
  change(node, id).alone = false
  call('HSET', node.key.pods, inv.pod, others .. '\n' .. id)
  return freed
end

local function begin(node, args)
  local owner, id, pod, domain, func, numbers, record = args[1], args[2], args[3], args[4], args[5], args[6], args[7]

  lapse(node, owner)
  local buried_until = call('ZSCORE', node.key.tombstones, id)
  if buried_until and tonumber(buried_until) > node.now then
    save(node)
    return {0, 0}
  end
  local inv = look(node, id)
  if inv then
    save(node)
    return inv.borrowed
  end

  local every_ms, most_ms, duration_ms, least_remaining_ms, cpu, memory, surplus_cpu, surplus_memory, want_cpu, want_memory =
    unpack_struct('<dddddddddd', numbers)
  renew_lease(node, owner, every_ms)

  inv = fresh{
    expires = node.now + duration_ms, least_remaining = math.max(least_remaining_ms, 1),
    want = {want_cpu, want_memory}, put = NOTHING, allocation = {cpu, memory},
    pod = pod, domain = domain, owner = owner, func = func, record = record,
    begun_now = true,
  }
  inv.had_spare, inv.was_hungry = {false, false}, {false, false}
  node.invocations[id] = inv
  node.changed[id] = true

  local freed = join_pod(node, id, inv)
  if node.open then
    for resource = CPU, MEMORY do
      if inv.want[resource] > 0 and node.on_loan[resource] < node.lendable[resource] then
        take(node, id, resource, candidates(node, 'surplus', resource, domain, node.now + inv.least_remaining))
      end
    end
    inv.put = put_in(node, inv, {surplus_cpu, surplus_memory}, most_ms)
    inv.spare = {inv.put[CPU], inv.put[MEMORY]}
  end
  if freed or not is_nothing(inv.put) then
    feed(node, {[domain] = true})
  end
  save(node)
  return inv.borrowed
end

-- join makes one JSON object out of several that are not empty. Numbers that Go
-- wrote stay as they are: Lua's own JSON keeps 14 digits.
local function join(...)
  local inner = {}
  for i, object in ipairs({...}) do
    inner[i] = string.sub(object, 2, -2)
  end
  return '{' .. table.concat(inner, ',') .. '}'
end

local function finish(node, args)
  local id, late, ending = args[2], args[3] == '1', args[4]
  local inv = look(node, id)
  if not inv then
    bury(node, id)
    return {0, 0, 0, 0, 0, 0, 0}
  end
  if release(node, id) then
    feed(node, {[inv.domain] = true})
  end
  save(node)
  -- By the time that a late end is heard of, another may have run in the pod.
  local alone = inv.alone and not late
  local lent, borrowed = inv.most_lent, inv.most_borrowed
  local pool_part = string.format(
    '{"alone":%s,"safeguarded":%s,"lent":{"cpu_milli":%d,"memory_bytes":%d},"borrowed":{"cpu_milli":%d,"memory_bytes":%d}}',
    tostring(alone), tostring(inv.safeguarded), lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY])
  call('XADD', node.key.ended, 'MAXLEN', '~', ENDED_LENGTH, '*',
    'v', RECORD_VERSION, 'data', join(inv.record, ending, pool_part))
  return {
    1, alone and 1 or 0, inv.safeguarded and 1 or 0,
    lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY],
  }
end

local function renew(node, args)
  local owner = args[1]
  lapse(node, owner)
  save(node)
  call('HSET', node.key.node, 'lease:' .. owner, node.now)
  return redis.status_reply('OK')
end

-- each_pair calls f with every two lines of a text.
local function each_pair(text, f)
  for first, second in string.gmatch(text, '([^\n]+)\n([^\n]+)') do
    f(first, second)
  end
end

-- take_part makes the pods those that take part, and ends what the others, and those
-- whose floor has risen, may not have on loan any more.
local function take_part(node, pods)
  call('DEL', node.key.floors)
  node.floors = {}
  each_pair(pods, function(pod, floor)
    call('HSET', node.key.floors, pod, floor)
    node.floors[pod] = tonumber(floor)
  end)
  keep(node)
  local here = {}
  for _, id in ipairs(call('HKEYS', node.key.invocations)) do
    if id ~= PLACEHOLDER then
      here[#here + 1] = id
      local inv = look(node, id)
      if not node.floors[inv.pod] then
        withdraw_all(node, id)
        give_back(node, id)
      end
    end
  end
  for _, id in ipairs(here) do
    local inv = look(node, id)
    local room = lendable(inv.allocation, node.floors[inv.pod] or 0)[MEMORY] - inv.lent[MEMORY]
    if room < 0 then
      withdraw(node, id, MEMORY)
    elseif inv.spare[MEMORY] > room then
      change(node, id).spare[MEMORY] = room
    end
  end
end

local function heartbeat(node, args)
  local agent, epoch, whole, numbers, pods = args[2], args[3], args[4] == '1', args[5], args[6]
  whole = whole and epoch == node.epoch
  node.heard, node.open, node.lendable = true, whole, {unpack_struct('<dd', numbers)}
  local cpu, memory = node.lendable[CPU], node.lendable[MEMORY]
  local digest = redis.sha1hex(pods)
  local changed = call('HGET', node.key.node, 'pods') ~= digest
  call('HSET', node.key.node, 'beat', pack('<dBddI2c0', node.now, whole and 1 or 0, cpu, memory, #agent, agent), 'pods', digest)
  if changed then
    take_part(node, pods)
  end
  if whole then
    local domains = {}
    for resource = CPU, MEMORY do
      for _, entry in ipairs(call('ZRANGEBYSCORE', node.key.hungry[resource], node.now + 1, '+inf')) do
        domains[string.match(entry, '^[^\n]+')] = true
      end
    end
    for id in pairs(node.changed) do
      domains[look(node, id).domain] = true
    end
    feed(node, domains)
  end
  save(node)
  return whole and 1 or 0
end

local function safeguard(node, args)
  local pod, named, least_ms, most_ms = args[2], {args[3] == '1', args[4] == '1'}, tonumber(args[5]), tonumber(args[6])
  local revoked = {0, 0}
  for id in string.gmatch(call('HGET', node.key.pods, pod) or '', '[^\n]+') do
    local inv = look(node, id)
    -- At most one in a pod has put anything in.
    local strikes = nil
    for resource = CPU, MEMORY do
      if named[resource] and inv.spare[resource] + inv.lent[resource] > 0 then
        revoked[resource] = withdraw(node, id, resource)
        strikes = strikes or strikes_of(node, inv.func, most_ms)
        strikes.till[resource] = node.now + math.min(least_ms * 2 ^ math.min(strikes.count[resource], 10), most_ms)
        strikes.count[resource] = strikes.count[resource] + 1
      end
    end
    if strikes then
      local count, till = strikes.count, strikes.till
      call('HSET', node.key.node, struck_field(inv.func), pack(STRUCK, count[CPU], count[MEMORY], till[CPU], till[MEMORY]))
      inv.safeguarded = true
      node.woken[pod] = true
      feed(node, {[inv.domain] = true})
      save(node)
      break
    end
  end
  return revoked
end

-- reap ends what the owners have whose leases have run out, and forgets strikes. It
-- returns the functions that are suspended.
local function reap(node, most_ms)
  local meta = call('HGETALL', node.key.node)
  local lapsed, suspended = {}, {}
  for i = 1, #meta, 2 do
    local kind, name = string.match(meta[i], '^(%a+):(.*)$')
    if kind == 'lease' then
      local renewed = tonumber(meta[i + 1])
      if renewed > node.now then
        -- The clock went back: without this the lease would last as long as that.
        call('HSET', node.key.node, meta[i], node.now)
      elseif renewed + node.lease_ms <= node.now then
        lapsed[name] = true
      end
    elseif kind == 'struck' then
      local strikes = strikes_of(node, name, most_ms)
      local till = strikes.till
      if strikes.count[CPU] + strikes.count[MEMORY] == 0 then
        call('HDEL', node.key.node, meta[i])
      elseif till[CPU] > node.now or till[MEMORY] > node.now then
        suspended[#suspended + 1] = {name, till[CPU] > node.now and till[CPU] or 0, till[MEMORY] > node.now and till[MEMORY] or 0}
      end
    end
  end
  if next(lapsed) then
    release_owned(node, lapsed)
    for owner in pairs(lapsed) do
      call('HDEL', node.key.node, 'lease:' .. owner)
    end
    save(node)
  end
  return suspended
end

-- entries_left are what donors could lend now: all of it, and each, the last to end
-- first.
local function entries_left(node, most)
  local seen, found, available = {}, {}, {0, 0}
  for resource = CPU, MEMORY do
    for _, entry in ipairs(call('ZRANGEBYSCORE', node.key.surplus[resource], node.now + 1, '+inf')) do
      local id = string.sub(entry, string.find(entry, '\n', 1, true) + 1)
      local inv = look(node, id)
      available[resource] = available[resource] + inv.spare[resource]
      if not seen[id] then
        seen[id] = true
        found[#found + 1] = {id = id, expires = inv.expires}
      end
    end
  end
  table.sort(found, latest_first)
  local entries = {}
  for i = 1, math.min(#found, most) do
    local inv = look(node, found[i].id)
    entries[i] = {inv.domain, inv.expires, inv.spare[CPU], inv.spare[MEMORY]}
  end
  return available, entries
end

-- balances are those of the pods that lend or borrow.
local function balances(node)
  local pods = {}
  local all = call('HGETALL', node.key.dealings)
  for i = 1, #all, 2 do
    if all[i] ~= PLACEHOLDER then
      local d = cmsgpack.unpack(all[i + 1])
      local lent, borrowed, pod = d[4], d[5], d[10]
      if not (is_nothing(lent) and is_nothing(borrowed)) then
        local b = pods[pod] or {pod, 0, 0, 0, 0, 0, 0}
        b[2], b[3] = b[2] + borrowed[CPU], b[3] + borrowed[MEMORY]
        b[4], b[5] = b[4] + lent[CPU], b[5] + lent[MEMORY]
        pods[pod] = b
      end
    end
  end
  local list = {}
  for pod, b in pairs(pods) do
    local latest = look(node, string.match(call('HGET', node.key.pods, pod), '[^\n]+$'))
    b[6], b[7] = latest.allocation[CPU], latest.allocation[MEMORY]
    list[#list + 1] = b
  end
  return list
end

local function read(node, args)
  local entries_most, most_ms = tonumber(args[2]), tonumber(args[3])
  local suspended = reap(node, most_ms)
  call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)
  local available, entries = entries_left(node, entries_most)
  return {
    node.epoch, node.heard and node.agent or '', node.open and 1 or 0,
    call('HLEN', node.key.invocations) - 1, available[CPU], available[MEMORY],
    balances(node), entries, suspended,
  }
end

local function register(name, callback, flags)
  redis.register_function{
    function_name = name,
    flags = flags,
    callback = function(keys, args)
      if args[1] ~= VERSION then
        return redis.error_reply('LIBRAVERSION ' .. VERSION)
      end
      local rest = {unpack(args, 4)}
      return callback(open_node(keys, tonumber(args[2]), tonumber(args[3]), rest[1]), rest)
    end,
  }
end

-- What only gives back works also when Redis is out of memory.
register('libra_begin', begin, {})
register('libra_end', finish, {'allow-oom'})
register('libra_renew', renew, {})
register('libra_heartbeat', heartbeat, {})
register('libra_safeguard', safeguard, {'allow-oom'})
register('libra_read', read, {'allow-oom'})
