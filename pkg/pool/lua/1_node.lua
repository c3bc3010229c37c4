#!lua name=libra

-- The pool of one node. memorynode.go says the same in Go and is the specification:
-- a change here is a change there, and raises VERSION here and in redis.go. The
-- files of this folder are one library, in the order of their names.
--
-- Every function gets the node's first key, from which it makes the others: they
-- share its hash tag, so that a cluster keeps them together, and twelve keys would
-- take longer to pass than most calls take. Its first arguments are the version its
-- caller was written for, and numbers: the lease time in milliseconds, the time in
-- milliseconds or 0 for the server's own, and what the function wants. A volume is
-- a pair, CPU in milli and memory in bytes.

local VERSION = '4'
local RECORD_VERSION = '1'

-- Longer than anything that is renewed, so that only a node that nobody uses any
-- more is forgotten, all of its keys within the same ten minutes.
local RETENTION_MS = 60 * 60 * 1000
local KEEP_EVERY_MS = 10 * 60 * 1000

-- How long an end may be remembered beyond its time.
local PRUNE_EVERY_MS = 20

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
local epochs_begun = 0

local function begin_library()
  call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
  local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  local time = call('TIME')
  library_epoch = string.format('%s-%d%06d-', string.sub(run_id, 1, 12), time[1], time[2])
end

local function is_nothing(v)
  return v[CPU] == 0 and v[MEMORY] == 0
end

-- What this process knows of nodes, by their first key. All of it is either about
-- what only this library does, or worked out of something that every call reads
-- again and compares.
local KNOWN_MOST = 10000
local known, known_count = {}, 0

local function know(first_key)
  if known_count == KNOWN_MOST then
    known, known_count = {}, 0
  end
  local prefix = string.sub(first_key, 1, -#'node' - 1)
  local node = {
    key = {
      node = first_key,
      invocations = prefix .. 'invocations',
      pods = prefix .. 'pods',     -- the ids of the invocations in each
      floors = prefix .. 'floors', -- of those that take part
      -- By resource: who has surplus in the pool, and who wants more than it has
      -- borrowed, both by their predicted end.
      surplus = {prefix .. 'surplus:cpu', prefix .. 'surplus:memory'},
      hungry = {prefix .. 'hungry:cpu', prefix .. 'hungry:memory'},
      tombstones = prefix .. 'tombstones',
      intents = prefix .. 'intents',
      ended = prefix .. 'ended',
    },
    pruned = 0,
    floors = {},
  }
  known[first_key] = node
  known_count = known_count + 1
  return node
end

local function keep(node)
  local key = node.key
  local emptied = {key.invocations, key.pods, key.floors}
  for _, name in ipairs(emptied) do
    call('HSET', name, PLACEHOLDER, '')
  end
  local indexes = {key.surplus[CPU], key.surplus[MEMORY], key.hungry[CPU], key.hungry[MEMORY]}
  for _, name in ipairs(indexes) do
    call('ZADD', name, '-inf', PLACEHOLDER)
  end
  call('ZADD', key.tombstones, '+inf', PLACEHOLDER)
  local streams = {key.intents, key.ended}
  for _, name in ipairs(streams) do
    if call('EXISTS', name) == 0 then
      call('XGROUP', 'CREATE', name, 'none', '$', 'MKSTREAM')
      call('XGROUP', 'DESTROY', name, 'none')
    end
  end
  for _, names in ipairs({emptied, indexes, streams, {key.node, key.tombstones}}) do
    for _, name in ipairs(names) do
      call('PEXPIRE', name, RETENTION_MS)
    end
  end
  node.kept = node.now
end

-- wipe begins a new epoch of the node, of which nothing is known.
local function wipe(node, had_epoch)
  local key = node.key
  call('DEL', key.node, key.invocations, key.pods, key.floors, key.surplus[CPU], key.surplus[MEMORY],
    key.hungry[CPU], key.hungry[MEMORY], key.tombstones)
  epochs_begun = epochs_begun + 1
  node.epoch = library_epoch .. epochs_begun
  node.floors, node.digest = {}, nil
  call('HSET', key.node, 'epoch', node.epoch)
  keep(node)
  if had_epoch then
    call('XADD', key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pod', '')
  end
end

local BEAT = '<dBddI2c0c40'

-- hear takes in the last heartbeat, as the node has it.
local function hear(node, beat)
  node.beat = beat
  if not beat then
    node.beat_at, node.whole, node.lendable, node.agent = nil, false, NOTHING, ''
    return
  end
  local at, whole, cpu, memory, agent, digest = unpack_struct(BEAT, beat)
  node.beat_at, node.whole, node.lendable, node.agent = at, whole == 1, {cpu, memory}, agent
  if node.digest ~= digest then
    node.floors, node.digest = {}, digest
  end
end

-- open_node reads what every call needs, and with it one or two fields more.
local function open_node(first_key, lease_ms, now, field, other_field)
  if not library_epoch then
    begin_library()
  end
  local node = known[first_key] or know(first_key)
  if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  node.now, node.lease_ms = now, lease_ms
  -- See widen: a call that failed may have left them.
  node.invocations = nil

  local meta
  if field then
    meta = call('HMGET', node.key.node, 'epoch', 'beat', 'on_loan', field, other_field)
  else
    meta = call('HMGET', node.key.node, 'epoch', 'beat', 'on_loan')
  end
  local epoch, beat, on_loan = meta[1], meta[2], meta[3]
  node.field, node.other_field = meta[4], meta[5]
  if epoch ~= node.epoch or not epoch then
    if epoch and string.sub(epoch, 1, #library_epoch) == library_epoch then
      node.epoch, node.kept = epoch, nil
    else
      wipe(node, epoch)
      beat, on_loan, node.field, node.other_field = false, false, false, false
    end
  end
  if not node.kept or now - node.kept >= KEEP_EVERY_MS or now < node.kept then
    keep(node)
  end
  if beat ~= node.beat or not node.lendable then
    hear(node, beat)
  end
  -- A heartbeat from ahead of now came before the clock went back.
  local at = node.beat_at
  node.heard = at ~= nil and at <= now and now < at + lease_ms
  node.open = node.heard and node.whole
  if on_loan then
    local cpu, memory = unpack_struct('<dd', on_loan)
    node.on_loan = {cpu, memory}
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

-- An invocation as it is kept. First what its Begin said: whether the second part
-- follows; when it is to end, and the least time to go for a loan; what it wants, what
-- it put in, what it is owed; pod, domain, owner and function; and its part of the
-- record of its end.
local BEGUN = '<BddddddddI2c0I2c0I2c0I2c0I4c0'

-- Then, once there is any of it, what it has dealt: whether it is alone in its pod, and
-- safeguarded; what it has to spare, has lent and borrowed, and the most of both; and
-- its donors and borrowers.
local DEALT = '<BBddddddddddI4c0'

-- widen makes room for what a call reads of invocations and changes of them: save
-- writes it back at the end.
local function widen(node)
  if not node.invocations then
    node.invocations = {}
    node.changed = {}
    node.moved = {} -- by pod, how its balance changed
    node.woken = {} -- pods that need an intent though their balance did not change
  end
end

local function decode(kept)
  local dealt, expires, least_remaining, want_cpu, want_memory, put_cpu, put_memory, cpu, memory,
    pod, domain, owner, func, record, position = unpack_struct(BEGUN, kept)
  if dealt == 0 then
    return {
      dealt = false, kept = kept, expires = expires, least_remaining = least_remaining,
      want = {want_cpu, want_memory}, allocation = {cpu, memory},
      pod = pod, domain = domain, owner = owner, func = func, record = record, alone = true, safeguarded = false,
      spare = {put_cpu, put_memory}, lent = NOTHING, borrowed = NOTHING, most_lent = NOTHING, most_borrowed = NOTHING,
      donors = {}, borrowers = {},
      gone = false, dealing = false, had_spare = false, was_hungry = false,
    }
  end
  local alone, safeguarded, sc, sm, lc, lm, bc, bm, mlc, mlm, mbc, mbm, parties = unpack_struct(DEALT, kept, position)
  local donors, borrowers
  if parties == '' then
    donors, borrowers = {}, {}
  else
    parties = cmsgpack.unpack(parties)
    donors, borrowers = parties[1], parties[2]
  end
  return {
    dealt = true, kept = string.sub(kept, 1, position - 1), expires = expires, least_remaining = least_remaining,
    want = {want_cpu, want_memory}, allocation = {cpu, memory},
    pod = pod, domain = domain, owner = owner, func = func, record = record, alone = alone == 1, safeguarded = safeguarded == 1,
    spare = {sc, sm}, lent = {lc, lm}, borrowed = {bc, bm}, most_lent = {mlc, mlm}, most_borrowed = {mbc, mbm},
    donors = donors, borrowers = borrowers,
    gone = false, dealing = false, had_spare = false, was_hungry = false,
  }
end

local function encode(inv)
  local parties = ''
  if next(inv.donors) or next(inv.borrowers) then
    parties = cmsgpack.pack({inv.donors, inv.borrowers})
  end
  local begun = inv.kept
  if not inv.dealt then
    begun = '\1' .. string.sub(begun, 2)
  end
  local spare, lent, borrowed, most_lent, most_borrowed = inv.spare, inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed
  return begun .. pack(DEALT, inv.alone and 1 or 0, inv.safeguarded and 1 or 0, spare[CPU], spare[MEMORY],
    lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY],
    most_lent[CPU], most_lent[MEMORY], most_borrowed[CPU], most_borrowed[MEMORY], #parties, parties)
end

local function remember(node, id, kept)
  local inv = decode(kept)
  local spare, want, borrowed = inv.spare, inv.want, inv.borrowed
  inv.had_spare = {spare[CPU] > 0, spare[MEMORY] > 0}
  inv.was_hungry = {want[CPU] > borrowed[CPU], want[MEMORY] > borrowed[MEMORY]}
  node.invocations[id] = inv
  return inv
end

local function look(node, id)
  local inv = node.invocations[id]
  if inv == nil then
    local kept = call('HGET', node.key.invocations, id)
    inv = kept and remember(node, id, kept)
    node.invocations[id] = inv
  end
  return inv
end

-- change lets an invocation's dealings be changed, and written back.
local function change(node, id)
  local inv = look(node, id)
  if not inv.dealing then
    node.changed[id] = inv
    inv.dealing = true
    if not inv.dealt then
      inv.lent, inv.borrowed, inv.most_lent, inv.most_borrowed = {0, 0}, {0, 0}, {0, 0}, {0, 0}
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
  for id, inv in pairs(node.changed) do
    local here = not inv.gone
    if here then
      call('HSET', key.invocations, id, inv.dealing and encode(inv) or inv.kept)
    else
      call('HDEL', key.invocations, id)
    end
    for resource = CPU, MEMORY do
      reindex(key.surplus[resource], inv.had_spare[resource], here and inv.spare[resource] > 0, inv, id)
      reindex(key.hungry[resource], inv.was_hungry[resource], here and inv.want[resource] > inv.borrowed[resource], inv, id)
    end
  end
  for pod, by in pairs(node.moved) do
    if by[1] ~= 0 or by[2] ~= 0 or by[3] ~= 0 or by[4] ~= 0 then
      node.woken[pod] = true
    end
  end
  for pod in pairs(node.woken) do
    call('XADD', key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pod', pod)
  end
  if next(node.moved) then
    call('HSET', key.node, 'on_loan', pack('<dd', node.on_loan[CPU], node.on_loan[MEMORY]))
  end
end
