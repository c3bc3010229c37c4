#!lua name=libra

-- The pool of one node. memory.go says the same in Go and is the specification:
-- a change here is a change there, and raises VERSION here and in redis.go.
--
-- Every function gets all keys of the node (redis.go, keysOf), and as its first
-- arguments the version its caller was written for, the lease time in
-- milliseconds, and the time in milliseconds or 0 for the server's own.

local VERSION = '3'
local RECORD_VERSION = '1'

-- Longer than anything that is renewed, so that only a node that nobody uses any
-- more is forgotten, all of its keys at the same moment.
local RETENTION_MS = 60 * 60 * 1000

-- About how many entries a node's streams keep. Both are followed live, and there
-- are many nodes.
local INTENTS_LENGTH = 100
local ENDED_LENGTH = 1000

-- Named as in the JSON of api.Resources.
local RESOURCES = {'cpu_milli', 'memory_bytes'}

local function volume(cpu_milli, memory_bytes)
  return {cpu_milli = tonumber(cpu_milli), memory_bytes = tonumber(memory_bytes)}
end

local function copy(v)
  return volume(v.cpu_milli, v.memory_bytes)
end

local function same(v, w)
  return v.cpu_milli == w.cpu_milli and v.memory_bytes == w.memory_bytes
end

local function open_node(keys, lease_ms, now)
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return {
    keys = keys,
    key = {
      invocations = keys[1],
      pods = keys[2],
      -- By resource: who has surplus in the pool, and who wants more than it has
      -- borrowed, both by their predicted end.
      surplus = {cpu_milli = keys[3], memory_bytes = keys[4]},
      hungry = {cpu_milli = keys[5], memory_bytes = keys[6]},
      leases = keys[7],
      tombstones = keys[8],
      open = keys[9],
      intents = keys[10],
      ended = keys[11],
    },
    lease_ms = lease_ms,
    now = now,
    -- What a call has read, and what it changed of it: save writes it back at
    -- the end, so that a call that fails half-way has changed nothing.
    invocations = {},
    changed = {},
    indexed_before = {},
    pods = {},
    balance_before = {},
    buried = {},
    renewed = nil,
  }
end

local function unmet(inv)
  return volume(inv.want.cpu_milli - inv.borrowed.cpu_milli, inv.want.memory_bytes - inv.borrowed.memory_bytes)
end

-- indexed is, by index, what the index has an invocation for where it is not 0.
local function indexed(inv)
  if inv.gone then
    return {surplus = volume(0, 0), hungry = volume(0, 0)}
  end
  return {surplus = copy(inv.spare), hungry = unmet(inv)}
end

local function look(node, id)
  if node.invocations[id] == nil then
    local json = redis.call('HGET', node.key.invocations, id)
    local inv = json and cjson.decode(json)
    node.invocations[id] = inv
    if inv then
      -- Without both it began before an upgrade, and wants what it has.
      inv.want = inv.want or copy(inv.borrowed)
      inv.least_remaining = inv.least_remaining or 1
      node.indexed_before[id] = indexed(inv)
    end
  end
  return node.invocations[id]
end

local function change(node, id)
  node.changed[id] = true
  return look(node, id)
end

local function change_pod(node, name)
  local pod = node.pods[name]
  if not pod then
    local json = redis.call('HGET', node.key.pods, name)
    pod = json and cjson.decode(json) or {begun = 0, borrowed = volume(0, 0), lent = volume(0, 0)}
    node.pods[name] = pod
    node.balance_before[name] = {borrowed = copy(pod.borrowed), lent = copy(pod.lent)}
  end
  return pod
end

-- A newline is in no name (validate.go), so it parts the domain from the id.
local function member(domain, id)
  return domain .. '\n' .. id
end

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
  local entries = redis.call('ZREVRANGEBYSCORE', node.key[index][resource], '+inf', least_expires, 'WITHSCORES')
  for i = 1, #entries, 2 do
    if string.sub(entries[i], 1, #prefix) == prefix then
      local id = string.sub(entries[i], #prefix + 1)
      if not node.changed[id] then
        table.insert(found, {id = id, expires = tonumber(entries[i + 1])})
      end
    end
  end
  for id in pairs(node.changed) do
    local inv = node.invocations[id]
    if inv.domain == domain and inv.expires >= least_expires and indexed(inv)[index][resource] > 0 then
      table.insert(found, {id = id, expires = inv.expires})
    end
  end
  table.sort(found, latest_first)
  return found
end

local function keep(node)
  for _, key in ipairs(node.keys) do
    redis.call('PEXPIRE', key, RETENTION_MS)
  end
end

local function save(node)
  for id in pairs(node.changed) do
    local inv = node.invocations[id]
    if inv.gone then
      redis.call('HDEL', node.key.invocations, id)
    else
      redis.call('HSET', node.key.invocations, id, cjson.encode(inv))
    end
    for index, after in pairs(indexed(inv)) do
      local before = node.indexed_before[id][index]
      for resource, key in pairs(node.key[index]) do
        if before[resource] == 0 and after[resource] > 0 then
          redis.call('ZADD', key, inv.expires, member(inv.domain, id))
        elseif before[resource] > 0 and after[resource] == 0 then
          redis.call('ZREM', key, member(inv.domain, id))
        end
      end
    end
  end
  for name, pod in pairs(node.pods) do
    if pod.begun == 0 then
      redis.call('HDEL', node.key.pods, name)
    else
      redis.call('HSET', node.key.pods, name, cjson.encode(pod))
    end
    local before = node.balance_before[name]
    if not (same(before.borrowed, pod.borrowed) and same(before.lent, pod.lent)) then
      redis.call('XADD', node.key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pod', name)
    end
  end
  if next(node.buried) then
    redis.call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)
    for id in pairs(node.buried) do
      redis.call('ZADD', node.key.tombstones, node.now + node.lease_ms, id)
    end
  end
  if node.renewed then
    redis.call('ZADD', node.key.leases, node.now, node.renewed)
  end
  keep(node)
end

-- lend raises the loan from donor to borrower; a negative amount lowers it.
local function lend(node, donor_id, borrower_id, resource, amount)
  local donor, borrower = change(node, donor_id), change(node, borrower_id)

  donor.lent[resource] = donor.lent[resource] + amount
  donor.most_lent[resource] = math.max(donor.most_lent[resource], donor.lent[resource])
  local donor_pod = change_pod(node, donor.pod)
  donor_pod.lent[resource] = donor_pod.lent[resource] + amount

  borrower.borrowed[resource] = borrower.borrowed[resource] + amount
  borrower.most_borrowed[resource] = math.max(borrower.most_borrowed[resource], borrower.borrowed[resource])
  local borrower_pod = change_pod(node, borrower.pod)
  borrower_pod.borrowed[resource] = borrower_pod.borrowed[resource] + amount

  local loan = borrower.donors[donor_id] or volume(0, 0)
  loan[resource] = loan[resource] + amount
  if same(loan, volume(0, 0)) then
    borrower.donors[donor_id] = nil
    donor.borrowers[borrower_id] = nil
  else
    borrower.donors[donor_id] = loan
    donor.borrowers[borrower_id] = true
  end
end

-- withdraw takes all that id put into the pool out of it, lent or not.
local function withdraw(node, id)
  local inv = change(node, id)
  for borrower_id in pairs(inv.borrowers) do
    for resource, amount in pairs(copy(look(node, borrower_id).donors[id])) do
      lend(node, id, borrower_id, resource, -amount)
    end
  end
  inv.spare = volume(0, 0)
end

local function give_back(node, id)
  for donor_id, loan in pairs(look(node, id).donors) do
    for resource, amount in pairs(copy(loan)) do
      lend(node, donor_id, id, resource, -amount)
      local donor = look(node, donor_id)
      donor.spare[resource] = donor.spare[resource] + amount
    end
  end
end

-- take lends id what it still wants, from the donors that last as long as it needs.
local function take(node, id, resource, donors)
  local inv = look(node, id)
  local want = unmet(inv)[resource]
  for _, found in ipairs(donors) do
    if want == 0 or found.expires < node.now + inv.least_remaining then
      return
    end
    -- A donor is the only one in its pod: only itself is to be left out.
    local donor = look(node, found.id)
    local amount = math.min(want, donor.spare[resource])
    if amount > 0 and found.id ~= id then
      donor.spare[resource] = donor.spare[resource] - amount
      lend(node, found.id, id, resource, amount)
      want = want - amount
    end
  end
end

local function is_open(node)
  local open_until = tonumber(redis.call('GET', node.key.open) or 0)
  -- A mark from further ahead than a lease was made before the clock went back.
  return node.now < open_until and open_until <= node.now + node.lease_ms
end

-- feed comes after all that may leave surplus in the pool or a want unmet. In the
-- domains of what has changed, those who want more take it, the last to end first.
local function feed(node)
  if not is_open(node) then
    return
  end
  local domains = {}
  for id in pairs(node.changed) do
    domains[node.invocations[id].domain] = true
  end
  for domain in pairs(domains) do
    for _, resource in ipairs(RESOURCES) do
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

-- An end stands for one lease time, whatever was known of the invocation: a Begin
-- that arrives late or twice must not bring it to life with nobody to end it. That
-- is long enough for a Begin that a hung Redis still has in a socket's buffer: its
-- End is repeated until it is answered, so that Redis runs again by then, and all
-- that had come in meanwhile runs within moments of it.
local function bury(node, id)
  node.buried[id] = true
end

local function is_buried(node, id)
  local buried_until = tonumber(redis.call('ZSCORE', node.key.tombstones, id) or 0)
  return node.buried[id] or buried_until > node.now
end

local function release(node, id)
  withdraw(node, id)
  give_back(node, id)
  local inv = look(node, id)
  inv.gone = true
  local pod = change_pod(node, inv.pod)
  pod.begun = pod.begun - 1
  bury(node, id)
end

local function release_owned(node, owners)
  for _, id in ipairs(redis.call('HKEYS', node.key.invocations)) do
    if owners[look(node, id).owner] then
      release(node, id)
    end
  end
end

-- lapse comes before anything that renews a lease: what has run out in an outage
-- must not come back to life after it.
local function lapse(node, owner)
  local renewed = tonumber(redis.call('ZSCORE', node.key.leases, owner) or node.now)
  if renewed + node.lease_ms <= node.now then
    release_owned(node, {[owner] = true})
    feed(node)
  end
end

local function begin(node, args)
  local id, pod_name, domain, owner = args[1], args[2], args[3], args[4]
  local duration_ms, least_remaining_ms = tonumber(args[5]), tonumber(args[6])
  local surplus, want = volume(args[7], args[8]), volume(args[9], args[10])
  local record = args[11]

  lapse(node, owner)
  if is_buried(node, id) then
    save(node)
    return {0, 0}
  end
  local inv = look(node, id)
  if inv then
    save(node)
    return {inv.borrowed.cpu_milli, inv.borrowed.memory_bytes}
  end

  node.renewed = owner

  inv = {
    pod = pod_name, domain = domain, owner = owner, record = record,
    expires = node.now + duration_ms, least_remaining = math.max(least_remaining_ms, 1), alone = true, want = want,
    spare = volume(0, 0), lent = volume(0, 0), borrowed = volume(0, 0),
    most_lent = volume(0, 0), most_borrowed = volume(0, 0),
    donors = {}, borrowers = {},
  }
  node.invocations[id] = inv
  node.indexed_before[id] = {surplus = volume(0, 0), hungry = volume(0, 0)}
  node.changed[id] = true

  local pod = change_pod(node, pod_name)
  if pod.begun == 0 then
    pod.only = id
  else
    inv.alone = false
    if pod.only then
      withdraw(node, pod.only)
      look(node, pod.only).alone = false
      pod.only = nil
    end
  end
  pod.begun = pod.begun + 1

  if is_open(node) then
    for _, resource in ipairs(RESOURCES) do
      take(node, id, resource, candidates(node, 'surplus', resource, domain, node.now + inv.least_remaining))
    end
    if inv.alone then
      inv.spare = surplus
    end
  end
  feed(node)
  save(node)
  return {inv.borrowed.cpu_milli, inv.borrowed.memory_bytes}
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
  local id, late, ending = args[1], args[2] == '1', args[3]
  local inv = look(node, id)
  if not inv then
    bury(node, id)
    save(node)
    return {0, 0, 0, 0, 0, 0}
  end
  release(node, id)
  feed(node)
  save(node)
  -- By the time that a late end is heard of, another may have run in the pod.
  local alone = inv.alone and not late
  local pool_part = cjson.encode({alone = alone, lent = inv.most_lent, borrowed = inv.most_borrowed})
  redis.call('XADD', node.key.ended, 'MAXLEN', '~', ENDED_LENGTH, '*',
    'v', RECORD_VERSION, 'data', join(inv.record, ending, pool_part))
  return {
    1, alone and 1 or 0,
    inv.most_lent.cpu_milli, inv.most_lent.memory_bytes,
    inv.most_borrowed.cpu_milli, inv.most_borrowed.memory_bytes,
  }
end

local function renew(node, args)
  local owner = args[1]
  lapse(node, owner)
  node.renewed = owner
  save(node)
  return redis.status_reply('OK')
end

local function open(node)
  redis.call('SET', node.key.open, node.now + node.lease_ms)
  keep(node)
  return redis.status_reply('OK')
end

local function reap(node)
  local lapsed = {}
  local leases = redis.call('ZRANGE', node.key.leases, 0, -1, 'WITHSCORES')
  for i = 1, #leases, 2 do
    local owner, renewed = leases[i], tonumber(leases[i + 1])
    if renewed > node.now then
      -- The clock went back: without this the lease would last as long as that.
      redis.call('ZADD', node.key.leases, node.now, owner)
    elseif renewed + node.lease_ms <= node.now then
      lapsed[owner] = true
    end
  end
  if next(lapsed) then
    release_owned(node, lapsed)
    feed(node)
    save(node)
    for owner in pairs(lapsed) do
      redis.call('ZREM', node.key.leases, owner)
    end
  end
end

local function read(node)
  reap(node)
  redis.call('ZREMRANGEBYSCORE', node.key.tombstones, '-inf', node.now)

  local reply = {redis.call('HLEN', node.key.invocations)}
  for _, resource in ipairs(RESOURCES) do
    local available = 0
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', node.key.surplus[resource], node.now + 1, '+inf')) do
      local id = string.sub(entry, string.find(entry, '\n', 1, true) + 1)
      available = available + look(node, id).spare[resource]
    end
    table.insert(reply, available)
  end
  local pods = redis.call('HGETALL', node.key.pods)
  for i = 1, #pods, 2 do
    local pod = cjson.decode(pods[i + 1])
    if not (same(pod.borrowed, volume(0, 0)) and same(pod.lent, volume(0, 0))) then
      table.insert(reply, pods[i])
      table.insert(reply, pod.borrowed.cpu_milli)
      table.insert(reply, pod.borrowed.memory_bytes)
      table.insert(reply, pod.lent.cpu_milli)
      table.insert(reply, pod.lent.memory_bytes)
    end
  end
  return reply
end

local function register(name, call, flags)
  redis.register_function{
    function_name = name,
    flags = flags,
    callback = function(keys, args)
      if args[1] ~= VERSION then
        return redis.error_reply('LIBRAVERSION ' .. VERSION)
      end
      local node = open_node(keys, tonumber(args[2]), tonumber(args[3]))
      return call(node, {unpack(args, 4)})
    end,
  }
end

-- What only gives back works also when Redis is out of memory.
register('libra_begin', begin, {})
register('libra_end', finish, {'allow-oom'})
register('libra_renew', renew, {})
register('libra_open', open, {})
register('libra_read', read, {'allow-oom'})
