#!lua name=libra

-- The pool of one node. memorynode.go says the same in Go and is the specification:
-- a change here is a change there, and raises VERSION here and in redis.go. The
-- files of this folder are one library, in the order of their names.
--
-- Every function gets all keys of the node (redis.go, keysOf), and as its first
-- arguments the version its caller was written for, the lease time in
-- milliseconds, and the time in milliseconds or 0 for the server's own. A volume is
-- a pair, CPU in milli and memory in bytes.

local VERSION = '4'
local RECORD_VERSION = '1'

-- Longer than anything that is renewed, so that only a node that nobody uses any
-- more is forgotten, all of its keys within the same ten minutes.
local RETENTION_MS = 60 * 60 * 1000
local KEEP_EVERY_MS = 10 * 60 * 1000

-- About how many entries a node's streams keep. Both are followed live, and there
-- are many nodes.
local INTENTS_LENGTH = 100
local ENDED_LENGTH = 1000

local CPU, MEMORY = 1, 2

-- Shared by all that has nothing, and never changed.
local NOTHING = {0, 0}

-- redis.call, struct.pack and struct.unpack, which are not there before the first
-- call of a function.
local call, pack, unpack_struct

-- A key without members does not exist, and one that comes to exist again has no
-- time to live. So each has one member that no name is (validate.go), and that no
-- time reaches.
local PLACEHOLDER = ''

-- The epoch is this server process's, as the variable goes with the process, and
-- this library's: after a restart, a failover or a reload it is another one.
local library_epoch = nil
local nodes_made = 0

local function epoch_of_library()
  if not library_epoch then
    local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
    local time = call('TIME')
    library_epoch = string.format('%s-%d%06d-', string.sub(run_id, 1, 12), time[1], time[2])
  end
  return library_epoch
end

local function is_nothing(v)
  return v[CPU] == 0 and v[MEMORY] == 0
end

local function keep(node)
  local key = node.key
  for _, name in ipairs({'invocations', 'dealings', 'pods', 'floors'}) do
    call('HSET', key[name], PLACEHOLDER, '')
  end
  for _, index in ipairs({key.surplus, key.hungry}) do
    call('ZADD', index[CPU], '-inf', PLACEHOLDER)
    call('ZADD', index[MEMORY], '-inf', PLACEHOLDER)
  end
  call('ZADD', key.tombstones, '+inf', PLACEHOLDER)
  for _, name in ipairs({'intents', 'ended'}) do
    if call('EXISTS', key[name]) == 0 then
      call('XGROUP', 'CREATE', key[name], 'none', '$', 'MKSTREAM')
      call('XGROUP', 'DESTROY', key[name], 'none')
    end
  end
  call('HSET', key.node, 'kept', node.now)
  for _, name in ipairs(node.keys) do
    call('PEXPIRE', name, RETENTION_MS)
  end
end

-- wipe begins a new epoch of the node, of which nothing is known.
local function wipe(node, had_epoch)
  local key = node.key
  call('DEL', key.node, key.invocations, key.dealings, key.pods, key.floors, key.surplus[CPU], key.surplus[MEMORY],
    key.hungry[CPU], key.hungry[MEMORY], key.tombstones)
  nodes_made = nodes_made + 1
  node.epoch = epoch_of_library() .. nodes_made
  call('HSET', key.node, 'epoch', node.epoch)
  keep(node)
  if had_epoch then
    call('XADD', key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pod', '')
  end
end

-- open_node reads what most calls need, and with it the lease of one owner.
local function open_node(keys, lease_ms, now, owner)
  call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
  if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local node = {
    keys = keys,
    key = {
      node = keys[1],
      invocations = keys[2], -- what a Begin said
      dealings = keys[3],    -- what became of it since
      pods = keys[4],        -- the ids of the invocations in each
      floors = keys[5],      -- of those that take part
      -- By resource: who has surplus in the pool, and who wants more than it has
      -- borrowed, both by their predicted end.
      surplus = {keys[6], keys[7]},
      hungry = {keys[8], keys[9]},
      tombstones = keys[10],
      intents = keys[11],
      ended = keys[12],
    },
    lease_ms = lease_ms,
    now = now,
    -- What a call has read, and what it changed of it: save writes it back at
    -- the end, so that a call that fails half-way has changed nothing.
    invocations = {},
    changed = {},
    floors = {},
    moved = {},   -- by pod, how its balance changed
    woken = {},   -- pods that need an intent though their balance did not change
  }
  local meta = call('HMGET', node.key.node, 'epoch', 'kept', 'beat', 'on_loan', 'lease:' .. owner)
  local epoch, kept, beat, on_loan, lease = meta[1], tonumber(meta[2]), meta[3], meta[4], meta[5]
  local mine = epoch_of_library()
  if not epoch or string.sub(epoch, 1, #mine) ~= mine then
    wipe(node, epoch)
    beat, on_loan, lease = false, false, false
  else
    node.epoch = epoch
    if now - kept >= KEEP_EVERY_MS or now < kept then
      keep(node)
    end
  end
  node.lease = lease and tonumber(lease)
  if beat then
    local at, whole, cpu, memory, agent = unpack_struct('<dBddI2c0', beat)
    -- One from ahead of now came before the clock went back.
    node.heard = at <= now and now < at + lease_ms
    node.open = node.heard and whole == 1
    node.lendable = {cpu, memory}
    node.agent = agent
  else
    node.heard, node.open, node.lendable = false, false, NOTHING
  end
  if on_loan then
    node.on_loan = {unpack_struct('<dd', on_loan)}
    node.on_loan[3] = nil
  else
    node.on_loan = {0, 0}
  end
  return node
end

-- floor_of is the least memory that a pod keeps, or false for one that takes no part.
local function floor_of(node, pod)
  local floor = node.floors[pod]
  if floor == nil then
    floor = call('HGET', node.key.floors, pod)
    floor = floor and tonumber(floor)
    node.floors[pod] = floor
  end
  return floor
end

local BEGUN = '<ddddddddI2c0I2c0I2c0I2c0I4c0'

local function encode(inv)
  local want, put, allocation = inv.want, inv.put, inv.allocation
  return pack(BEGUN, inv.expires, inv.least_remaining, want[CPU], want[MEMORY], put[CPU], put[MEMORY],
    allocation[CPU], allocation[MEMORY], #inv.pod, inv.pod, #inv.domain, inv.domain, #inv.owner, inv.owner,
    #inv.func, inv.func, #inv.record, inv.record)
end

-- fresh is an invocation that has not dealt with others.
local function fresh(inv)
  inv.alone, inv.safeguarded = true, false
  inv.spare, inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed = inv.put, NOTHING, NOTHING, NOTHING, NOTHING
  inv.donors, inv.borrowers = {}, {}
  return inv
end

local function decode(begun, dealt)
  local expires, least_remaining, want_cpu, want_memory, put_cpu, put_memory, cpu, memory, pod, domain, owner, func, record =
    unpack_struct(BEGUN, begun)
  local inv = fresh{
    expires = expires, least_remaining = least_remaining, want = {want_cpu, want_memory}, put = {put_cpu, put_memory},
    allocation = {cpu, memory}, pod = pod, domain = domain, owner = owner, func = func, record = record,
  }
  if dealt then
    local d = cmsgpack.unpack(dealt)
    inv.dealt = true
    inv.alone, inv.safeguarded = d[1], d[2]
    inv.spare, inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed = d[3], d[4], d[5], d[6], d[7]
    inv.donors, inv.borrowers = d[8], d[9]
  end
  return inv
end

local function encode_dealings(inv)
  return cmsgpack.pack({
    inv.alone, inv.safeguarded, inv.spare, inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed,
    inv.donors, inv.borrowers, inv.pod, inv.allocation,
  })
end

local function remember(node, id, inv)
  node.invocations[id] = inv
  inv.had_spare = {inv.spare[CPU] > 0, inv.spare[MEMORY] > 0}
  inv.was_hungry = {inv.want[CPU] > inv.borrowed[CPU], inv.want[MEMORY] > inv.borrowed[MEMORY]}
  return inv
end

local function look(node, id)
  local inv = node.invocations[id]
  if inv == nil then
    local begun = call('HGET', node.key.invocations, id)
    if not begun then
      node.invocations[id] = false
      return false
    end
    inv = remember(node, id, decode(begun, call('HGET', node.key.dealings, id)))
  end
  return inv
end

-- change makes an invocation's dealings its own, to be written back.
local function change(node, id)
  local inv = look(node, id)
  node.changed[id] = true
  if not inv.dealing then
    inv.dealing = true
    for _, field in ipairs({'spare', 'lent', 'borrowed', 'most_lent', 'most_borrowed'}) do
      inv[field] = {inv[field][CPU], inv[field][MEMORY]}
    end
  end
  return inv
end

-- A newline is in no name (validate.go), so it parts the domain from the id.
local function member(domain, id)
  return domain .. '\n' .. id
end

local function reindex(key, had, has, inv, id)
  if has and not had then
    call('ZADD', key, inv.expires, member(inv.domain, id))
  elseif had and not has then
    call('ZREM', key, member(inv.domain, id))
  end
end

local function save(node)
  local key = node.key
  for id in pairs(node.changed) do
    local inv = node.invocations[id]
    local here = not inv.gone
    if here then
      if inv.begun_now then
        call('HSET', key.invocations, id, encode(inv))
      end
      if inv.dealing then
        call('HSET', key.dealings, id, encode_dealings(inv))
      end
    else
      call('HDEL', key.invocations, id)
      if inv.dealt then
        call('HDEL', key.dealings, id)
      end
    end
    for resource = CPU, MEMORY do
      reindex(key.surplus[resource], inv.had_spare[resource], here and inv.spare[resource] > 0, inv, id)
      reindex(key.hungry[resource], inv.was_hungry[resource], here and inv.want[resource] > inv.borrowed[resource], inv, id)
    end
  end
  local lending = false
  for pod, by in pairs(node.moved) do
    lending = true
    if by[1] ~= 0 or by[2] ~= 0 or by[3] ~= 0 or by[4] ~= 0 then
      node.woken[pod] = true
    end
  end
  for pod in pairs(node.woken) do
    call('XADD', key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pod', pod)
  end
  if lending then
    call('HSET', key.node, 'on_loan', pack('<dd', node.on_loan[CPU], node.on_loan[MEMORY]))
  end
end
