
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

local function read_strikes(struck, now, most_ms)
  if not struck then
    return {count = {0, 0}, till = {0, 0}}
  end
  local cpu_count, memory_count, cpu_till, memory_till = unpack_struct(STRUCK, struck)
  local strikes = {count = {cpu_count, memory_count}, till = {cpu_till, memory_till}}
  for resource = CPU, MEMORY do
    if forgotten(strikes.count[resource], strikes.till[resource], now, most_ms) then
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

-- join_pod makes the invocation one of its pod's beside others, and says whether that
-- ended a loan.
local function join_pod(node, id, pod)
  widen(node)
  local freed = false
  local others = call('HGET', node.key.pods, pod)
  for other in string.gmatch(others, '[^\n]+') do
    local inv = look(node, other)
    if inv and inv.alone then
      freed = withdraw_all(node, other)
      change(node, other).alone = false
    end
  end
  call('HSET', node.key.pods, pod, others .. '\n' .. id)
  return freed
end

local function any(key, now)
  return call('ZCOUNT', key, now + 1, '+inf') > 0
end

local function begin(node, args, every_ms, most_ms, duration_ms, least_ms, cpu, memory, surplus_cpu, surplus_memory, want_cpu, want_memory)
  local owner, id, pod, domain, func, record = args[3], args[4], args[5], args[6], args[7], args[8]
  local key, now, lease, struck = node.key, node.now, node.field, node.other_field

  if lapse(node, owner, lease) then
    save(node)
    node.invocations, lease = nil, nil
  end
  local buried_until = call('ZSCORE', key.tombstones, id)
  if buried_until and tonumber(buried_until) > now then
    return NOTHING
  end
  local kept = call('HGET', key.invocations, id)
  if kept then
    return decode(kept).borrowed
  end
  -- A lease that would not last until its owner's next Renew.
  lease = lease and tonumber(lease)
  if not lease or now - lease >= every_ms or now < lease then
    call('HSET', key.node, 'lease:' .. owner, now)
  end

  local alone = call('HSETNX', key.pods, pod, id) == 1
  local freed = not alone and join_pod(node, id, pod)

  local put_cpu, put_memory = 0, 0
  local deals = freed -- whether others' loans may change, too
  if node.open and surplus_cpu + surplus_memory + want_cpu + want_memory > 0 then
    local floor = floor_of(node, pod)
    if floor then
      if alone then
        local most = lendable({cpu, memory}, floor)
        local till = struck and read_strikes(struck, now, most_ms).till or NOTHING
        put_cpu = till[CPU] <= now and math.min(surplus_cpu, most[CPU]) or 0
        put_memory = till[MEMORY] <= now and math.min(surplus_memory, most[MEMORY]) or 0
      end
      deals = deals
        or put_cpu + put_memory > 0 and (any(key.hungry[CPU], now) or any(key.hungry[MEMORY], now))
        or want_cpu > 0 and (put_cpu > 0 or any(key.surplus[CPU], now))
        or want_memory > 0 and (put_memory > 0 or any(key.surplus[MEMORY], now))
    end
  end

  local expires = now + duration_ms
  kept = pack(BEGUN, 0, expires, math.max(least_ms, 1), want_cpu, want_memory, put_cpu, put_memory, cpu, memory,
    #pod, pod, #domain, domain, #owner, owner, #func, func, #record, record)
  if alone and not deals then
    call('HSET', key.invocations, id, kept)
    local index = member(domain, id)
    if put_cpu > 0 then call('ZADD', key.surplus[CPU], expires, index) end
    if put_memory > 0 then call('ZADD', key.surplus[MEMORY], expires, index) end
    if want_cpu > 0 then call('ZADD', key.hungry[CPU], expires, index) end
    if want_memory > 0 then call('ZADD', key.hungry[MEMORY], expires, index) end
    return NOTHING
  end

  widen(node)
  local inv = remember(node, id, kept)
  inv.had_spare, inv.was_hungry = {false, false}, {false, false}
  node.changed[id] = inv
  if not alone then
    change(node, id).alone = false
  end
  if node.open then
    for resource = CPU, MEMORY do
      take(node, id, resource)
    end
    if freed or put_cpu + put_memory > 0 then
      feed(node, {[domain] = true})
    end
  end
  save(node)
  return inv.borrowed
end

-- What ended without a loan.
local POOL_PART = ',"lent":{"cpu_milli":0,"memory_bytes":0},"borrowed":{"cpu_milli":0,"memory_bytes":0}}'

-- record_end appends the record of an end, which is made of the parts that the Begin
-- and the End sent, and the pool's. Numbers that Go wrote stay as they are.
local function record_end(node, parts, alone, safeguarded, pool_part)
  call('XADD', node.key.ended, 'MAXLEN', '~', ENDED_LENGTH, '*', 'v', RECORD_VERSION, 'data',
    parts .. (alone and '"alone":true' or '"alone":false')
      .. (safeguarded and ',"safeguarded":true' or ',"safeguarded":false') .. pool_part)
end

local function finish(node, args, late)
  local id, ending = args[3], args[4]
  local key = node.key
  local kept = call('HGET', key.invocations, id)
  if not kept then
    bury(node, id)
    return {0, 0, 0, 0, 0, 0, 0}
  end
  -- By the time that a late end is heard of, another may have run in the pod.
  late = late == 1
  local dealt, _, _, want_cpu, want_memory, put_cpu, put_memory, _, _, pod, domain, _, _, record = unpack_struct(BEGUN, kept)
  if dealt == 0 then
    call('HDEL', key.invocations, id)
    call('HDEL', key.pods, pod)
    local index = member(domain, id)
    if put_cpu > 0 then call('ZREM', key.surplus[CPU], index) end
    if put_memory > 0 then call('ZREM', key.surplus[MEMORY], index) end
    if want_cpu > 0 then call('ZREM', key.hungry[CPU], index) end
    if want_memory > 0 then call('ZREM', key.hungry[MEMORY], index) end
    bury(node, id)
    record_end(node, record .. ending, not late, false, POOL_PART)
    return {1, late and 0 or 1, 0, 0, 0, 0, 0}
  end

  widen(node)
  local inv = remember(node, id, kept)
  if release(node, id) then
    feed(node, {[domain] = true})
  end
  save(node)
  local alone = inv.alone and not late
  local lent, borrowed = inv.most_lent, inv.most_borrowed
  record_end(node, record .. ending, alone, inv.safeguarded, string.format(
    ',"lent":{"cpu_milli":%d,"memory_bytes":%d},"borrowed":{"cpu_milli":%d,"memory_bytes":%d}}',
    lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY]))
  return {
    1, alone and 1 or 0, inv.safeguarded and 1 or 0,
    lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY],
  }
end

local function renew(node, args)
  local owner = args[3]
  if lapse(node, owner, node.field) then
    save(node)
  end
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

local function heartbeat(node, args, whole, cpu, memory)
  widen(node)
  local agent, epoch, pods = args[3], args[4], args[5]
  whole = whole == 1 and epoch == node.epoch
  local digest, had = redis.sha1hex(pods), node.digest
  local beat = pack(BEAT, node.now, whole and 1 or 0, cpu, memory, #agent, agent, digest)
  call('HSET', node.key.node, 'beat', beat)
  hear(node, beat)
  node.heard, node.open = true, whole
  if digest ~= had then
    take_part(node, pods)
  end
  if whole then
    local domains = {}
    for resource = CPU, MEMORY do
      for _, entry in ipairs(call('ZRANGEBYSCORE', node.key.hungry[resource], node.now + 1, '+inf')) do
        domains[string.match(entry, '^[^\n]+')] = true
      end
    end
    for _, inv in pairs(node.changed) do
      domains[inv.domain] = true
    end
    feed(node, domains)
  end
  save(node)
  return whole and 1 or 0
end

local function safeguard(node, args, cpu, memory, least_ms, most_ms)
  widen(node)
  local pod, named = args[3], {cpu == 1, memory == 1}
  local revoked = {0, 0}
  for id in string.gmatch(call('HGET', node.key.pods, pod) or '', '[^\n]+') do
    local inv = look(node, id)
    -- At most one in a pod has put anything in.
    local strikes, field = nil, nil
    for resource = CPU, MEMORY do
      if inv and named[resource] and inv.spare[resource] + inv.lent[resource] > 0 then
        revoked[resource] = withdraw(node, id, resource)
        field = struck_field(inv.func)
        strikes = strikes or read_strikes(call('HGET', node.key.node, field), node.now, most_ms)
        strikes.till[resource] = node.now + math.min(least_ms * 2 ^ math.min(strikes.count[resource], 10), most_ms)
        strikes.count[resource] = strikes.count[resource] + 1
      end
    end
    if strikes then
      local count, till = strikes.count, strikes.till
      call('HSET', node.key.node, field, pack(STRUCK, count[CPU], count[MEMORY], till[CPU], till[MEMORY]))
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
      local strikes = read_strikes(meta[i + 1], node.now, most_ms)
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

-- survey goes through all invocations, and returns what donors could lend now, all of
-- it and each, the last to end first, and the balances of the pods.
local function survey(node, entries_most)
  local available, found, pods = {0, 0}, {}, {}
  local all = call('HGETALL', node.key.invocations)
  for i = 1, #all, 2 do
    local id = all[i]
    if id ~= PLACEHOLDER then
      local inv = decode(all[i + 1])
      local spare, lent, borrowed = inv.spare, inv.lent, inv.borrowed
      if inv.expires > node.now and not is_nothing(spare) then
        available[CPU], available[MEMORY] = available[CPU] + spare[CPU], available[MEMORY] + spare[MEMORY]
        found[#found + 1] = {id = id, expires = inv.expires, domain = inv.domain, spare = spare}
      end
      if not (is_nothing(lent) and is_nothing(borrowed)) then
        local b = pods[inv.pod] or {inv.pod, 0, 0, 0, 0, inv.allocation[CPU], inv.allocation[MEMORY], alone = inv.alone}
        b[2], b[3] = b[2] + borrowed[CPU], b[3] + borrowed[MEMORY]
        b[4], b[5] = b[4] + lent[CPU], b[5] + lent[MEMORY]
        pods[inv.pod] = b
      end
    end
  end

  table.sort(found, latest_first)
  local entries, balances = {}, {}
  for i = 1, math.min(#found, entries_most) do
    local f = found[i]
    entries[i] = {f.domain, f.expires, f.spare[CPU], f.spare[MEMORY]}
  end
  for pod, b in pairs(pods) do
    if not b.alone then
      local latest = look(node, string.match(call('HGET', node.key.pods, pod), '[^\n]+$'))
      b[6], b[7] = latest.allocation[CPU], latest.allocation[MEMORY]
    end
    balances[#balances + 1] = b
  end
  return available, entries, balances
end

local function read(node, args, entries_most, most_ms)
  widen(node)
  local suspended = reap(node, most_ms)
  call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)
  local available, entries, balances = survey(node, entries_most)
  return {
    node.epoch, node.heard and node.agent or '', node.open and 1 or 0,
    call('HLEN', node.key.invocations) - 1, available[CPU], available[MEMORY],
    balances, entries, suspended,
  }
end

-- register makes a function of the library. Its third argument is an owner where it
-- is one's; format is that of the numbers.
local function register(name, flags, format, owned, callback)
  local function call_with(first_key, args, lease_ms, now, ...)
    if owned then
      return callback(open_node(first_key, lease_ms, now, 'lease:' .. args[3], struck_field(args[7] or '')), args, ...)
    end
    return callback(open_node(first_key, lease_ms, now), args, ...)
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

-- What only gives back works also when Redis is out of memory.
register('libra_begin', {}, '<dddddddddddd', true, begin)
register('libra_end', {'allow-oom'}, '<ddd', false, finish)
register('libra_renew', {}, '<dd', true, renew)
register('libra_heartbeat', {}, '<ddddd', false, heartbeat)
register('libra_safeguard', {'allow-oom'}, '<dddddd', false, safeguard)
register('libra_read', {'allow-oom'}, '<dddd', false, read)
