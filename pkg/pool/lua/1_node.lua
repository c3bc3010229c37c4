
-- The pool of one node. Package pooltest implements the same in Go and is the specification: a
-- change here needs the same change there and a higher version in library.go, which puts the
-- library's name and VERSION before the files of this folder. The files make up one library, in the
-- order of their names.
--
-- Versions live side by side during an upgrade, each with its own functions, keys and state. All
-- share one key of a node. Each version notes in it that it has been told of requests, and none
-- lends while another has been: it would lend what those requests need.
--
-- Begun invocations and loans are in variables of this library, not in keys. Redis loses them with
-- the process, on purpose: another process may have an outdated view of the node (a new epoch lends
-- nothing until the agent has seen the node whole). A key holds the epoch, so that the next call
-- notices a flush, a failover or a restored disk. Streams are in keys, too.
--
-- Every function but profiles gets the node's first key and makes the others from it: they share
-- its hash tag, so that a cluster keeps them together. The first argument is numbers: the lease
-- time in milliseconds, the time in milliseconds or 0 for the server's own, and those that the
-- function wants. A volume is a pair, CPU in milli and memory in bytes.

local RECORD_VERSION = '1'
local RANKED_VERSION = '1' -- of the records of ranked Begins
local ENDED_VERSION = '2' -- of the records of ends

-- Longer than anything that is renewed lasts, so that Redis forgets only a node that nobody uses
-- any more, and all of its keys within the same ten minutes.
local RETENTION_MS = 60 * 60 * 1000
local KEEP_EVERY_MS = 10 * 60 * 1000

-- About how many entries a node's streams have at most, and from which age on they are removed, once
-- in a lease time. Both streams can be short: their readers follow them live, and read the state
-- once a second anyway. There are many nodes.
local INTENTS_LENGTH = '100'
local EVENTS_LENGTH = '1000'
local STREAMED_MS = 3000

local CPU, MEMORY = 1, 2

-- Shared by everything that has nothing. It must never change.
local NOTHING = {0, 0}

local function volume(cpu, memory)
  if cpu == 0 and memory == 0 then
    return NOTHING
  end
  return {cpu, memory}
end

-- redis.call, which does not exist before the first call of a function.
local call

-- The first part of an epoch is for this server process and this load of the library, because the
-- variable is lost with either. The second part is for the node.
local library_epoch = nil
local epochs_begun = 0

local function begin_library()
  call = redis.call
  local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  local time = call('TIME')
  -- Redis runs the garbage collector every fifty calls, however little there is to collect. With
  -- Lua's default, it walks through the data of all nodes again and again, and calls wait
  -- meanwhile: with 1,000 nodes, P99 of a Begin is 1.18 times (1.10 to 1.28) what it is with a
  -- quarter of the default, which keeps up, too. A server that does not allow the change keeps the
  -- default.
  pcall(function() collectgarbage('setstepmul', 50) end)
  library_epoch = string.format('%s-%d%06d-', string.sub(run_id, 1, 12), time[1], time[2])
end

local function is_nothing(v)
  return v[CPU] == 0 and v[MEMORY] == 0
end

-- The nodes, by their first key.
local nodes, nodes_count, sweep_at = {}, 0, 1000

-- The nodes in the order in which their profiles last changed, and the number of all changes: a
-- caller that asks what has changed since finds it without looking at the other nodes.
local newest, profile_changes = nil, 0

local function unlink(node)
  if node.newer then
    node.newer.older = node.older
  elseif newest == node then
    newest = node.older
  end
  if node.older then
    node.older.newer = node.newer
  end
  node.newer, node.older = nil, nil
end

-- note_change notes that the profile of a node may have changed.
local function note_change(node)
  profile_changes = profile_changes + 1
  node.changed, node.profile = profile_changes, nil
  if node ~= newest then
    unlink(node)
    node.older = newest
    if newest then
      newest.newer = node
    end
    newest = node
  end
end

-- forget_idle forgets the nodes whose keys have expired.
local function forget_idle(now)
  nodes_count = 0
  for first_key, node in pairs(nodes) do
    if node.now + RETENTION_MS < now then
      nodes[first_key] = nil
      unlink(node)
    else
      nodes_count = nodes_count + 1
    end
  end
  sweep_at = math.max(1000, 2 * nodes_count)
end

local function keep(node)
  local key = node.key
  for _, stream in ipairs({key.intents, key.events}) do
    if call('EXISTS', stream) == 0 then
      call('XGROUP', 'CREATE', stream, 'none', '$', 'MKSTREAM')
      call('XGROUP', 'DESTROY', stream, 'none')
    end
  end
  for _, name in pairs(key) do
    call('PEXPIRE', name, RETENTION_MS)
  end
  node.kept = node.now
end

-- append_intent wakes readers that wait for balances. The pod names are for people: a reader that
-- wakes up reads the state.
local function append_intent(node, pods)
  call('XADD', node.key.intents, 'MAXLEN', '~', INTENTS_LENGTH, '*', 'v', RECORD_VERSION, 'pods', pods)
end

-- append_ranked reports a ranked invocation that has begun. That happens with every request, so the
-- entry says everything and nobody needs to read the state for it.
local function append_ranked(node, inv)
  call('XADD', node.key.events, 'MAXLEN', '~', EVENTS_LENGTH, '*',
    'ranked', RANKED_VERSION, 'pod', inv.pod, 'id', inv.id, 'cpu_time', inv.cpu_time)
end

-- append_ended reports an invocation that has ended. It uses the same stream, so that a call which
-- ends one invocation and begins another wakes a reader of both only once.
local function append_ended(node, begun, ending, pool)
  call('XADD', node.key.events, 'MAXLEN', '~', EVENTS_LENGTH, '*',
    'ended', ENDED_VERSION, 'begun', begun, 'ending', ending, 'pool', pool)
end

local function trim(node)
  local key, oldest = node.key, node.now - STREAMED_MS
  call('XTRIM', key.intents, 'MINID', '~', oldest)
  call('XTRIM', key.events, 'MINID', '~', oldest)
  node.buried, node.buried_before = {}, node.buried
  node.trimmed = node.now
end

-- begin_epoch makes a node about which nothing is known.
local function begin_epoch(first_key, now, had_epoch)
  if nodes[first_key] then
    unlink(nodes[first_key])
  else
    nodes_count = nodes_count + 1
    if nodes_count > sweep_at then
      forget_idle(now)
    end
  end
  epochs_begun = epochs_begun + 1
  local prefix = string.sub(first_key, 1, -#'node' - 1)
  local node = {
    key = {
      epoch = first_key,
      intents = prefix .. 'intents',
      events = prefix .. 'events', -- ranked invocations that have begun, and all that have ended
      versions = string.match(first_key, '^(.-})') .. ':versions', -- when each version was last told of requests
    },
    marked_at = nil, -- when this version was
    epoch = library_epoch .. epochs_begun,
    now = now,
    busy = true,     -- a call is under way, or failed half-way
    trimmed = 0,     -- when last
    buried = {}, buried_before = {}, -- by invocation: the Ends that stand, since and before the last trim
    traced = 0,
    -- Until then, invocations may have begun that the pool does not know: before the epoch, or told to
    -- another version.
    unsure_at = now,
    -- From the last heartbeat. was_whole says whether any was whole since unsure_at.
    beat_at = nil, whole = false, was_whole = false, was_shared = false, agent = '', lendable = NOTHING, floors = {}, pods_text = '', needs_text = '',
    leases = {},     -- by owner, when it last renewed
    begun = {},      -- by id
    begun_count = 0,
    in_pod = {},     -- by pod: its invocations in the order of their Begins, or the one that left it idle, and what it lends
    -- By name: the pods that put something in, the invocations that want something, and what is on
    -- loan.
    domains = {}, domains_count = 0,
    turn = '',       -- the domain that was lent to first, the last time that several wanted something
    capped = false,  -- a domain was held to its part for the sake of others
    on_loan = {0, 0},
    struck = {},     -- by function: the strikes against its donors in flight
    struck_idle = {}, -- and those against its idle donors
    unseen = {},     -- by pod and owner: how many invocations there are that the pool cannot identify
    raised = {},     -- the pods that borrow CPU, or did since the last heartbeat
    name = string.match(first_key, '{(.*)}'),
    capacity = NOTHING, idle = NOTHING, -- of the last heartbeat
    -- In milli CPU: the predicted use of the ranked invocations now and at the last heartbeat, and
    -- what was unused at that heartbeat.
    rate = 0, rate_then = 0, unused_then = 0,
    changed = 0, newer = nil, older = nil, profile = nil, -- profile is in the form of the reply, nil when it is outdated
  }
  nodes[first_key] = node
  node.marked_at = tonumber(call('ZSCORE', node.key.versions, VERSION) or nil)
  call('SET', first_key, node.epoch)
  keep(node)
  note_change(node)
  if had_epoch then
    append_intent(node, '')
  end
  return node
end

local function server_time()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- mark notes that this version has requests on the node. Leases are renewed often enough to keep
-- the mark alive.
local MARK_EVERY_MS = 1000

local function mark(node)
  local at, key = node.marked_at, node.key.versions
  if at and at <= node.now and node.now < at + MARK_EVERY_MS then
    return
  end
  -- What was done so far is whole. If the caller may not do more, the node need not be made anew.
  node.busy = false
  if call('ZADD', key, node.now, VERSION) == 1 then -- the key may be new
    call('PEXPIRE', key, RETENTION_MS)
  end
  node.marked_at, node.busy = node.now, true
end

-- The longest that a request which the pool has lost sight of is taken to run on.
local UNSEEN_MOST_MS = 10 * 60 * 1000

-- told_others says whether another version has had requests on the node since a time. Its last
-- Begin may be up to 2 * MARK_EVERY_MS later than its last mark.
local function told_others(node, since)
  local at = node.marked_at
  local own = at and at >= since and at <= node.now and 1 or 0
  return call('ZCOUNT', node.key.versions, since, node.now) > own
end

-- is_shared says whether another version has had requests on the node within a lease time.
local function is_shared(node)
  return told_others(node, node.now - node.lease_ms + 1)
end

-- is_open says whether the node lends. Most calls need not know, and the others ask more than once,
-- so it keeps the answer: looked up each time, an invocation takes 1.14 times (1.02 to 1.26) as
-- much CPU on one node, and P99 of a Begin is 1.13 times (1.03 to 1.26) what it is.
local function is_open(node)
  if node.open == nil then
    node.open = node.heard and node.whole and not is_shared(node)
  end
  return node.open
end

local function forget_marks(node)
  local at, past = node.marked_at, node.now - UNSEEN_MOST_MS
  node.busy = false -- as in mark
  call('ZREMRANGEBYSCORE', node.key.versions, '-inf', past)
  node.busy = true
  node.marked_at = at and at > past and at or nil
end

-- open_node takes the time, or 0 for the server's.
local function open_node(first_key, lease_ms, now)
  if not library_epoch then
    begin_library()
  end
  local epoch = redis.pcall('GET', first_key) -- an error, from a key of another type, is not one of our epochs
  local node = nodes[first_key]
  -- A call that failed half-way leaves the node busy.
  local known = node and node.epoch == epoch and not node.busy
  if now == 0 then
    now = server_time()
  end
  if not known then
    node = begin_epoch(first_key, now, epoch)
  elseif now - node.kept >= KEEP_EVERY_MS or now < node.kept then
    node.now = now
    keep(node)
  end
  node.now, node.lease_ms, node.busy = now, lease_ms, true
  -- A heartbeat from the future came before the clock went back.
  local at = node.beat_at
  node.heard = at ~= nil and at <= now and now < at + lease_ms
  node.open, node.moved, node.woken, node.ranked, node.touched = nil, nil, nil, nil, nil
  if now - node.trimmed >= lease_ms then
    trim(node)
  elseif now < node.trimmed then
    -- The clock went back. What is trimmed next must still be a lease time old.
    node.trimmed = now
  end
  return node
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
    by = {0, 0, 0, 0, 0, 0} -- borrowed, lent, LAPSED and IDLE
    moved[pod] = by
  end
  by[index] = by[index] + amount
end

-- note_lapsed notes that a ranked invocation is no longer in flight although no record of its end
-- says so.
local LAPSED = 5

-- For a pod with loans: 1 when it has become an idle donor, -1 when it has stopped being one.
local IDLE = 6

local function note_lapsed(node, pod)
  move(node, pod, LAPSED, 1)
end

local function changes(by)
  return by[1] ~= 0 or by[2] ~= 0 or by[3] ~= 0 or by[4] ~= 0 or by[IDLE] ~= 0
end

-- publish_memory tells the controller that some pods borrow more or less memory, or need more or
-- less. Memory is the only part of a node's balances that the controller does not leave to the
-- agent, and it changes rarely. A controller that does not listen now reads everything when it
-- does. It finds loans that end without a call, as with a lease, when it looks at raised limits
-- once a second. A Redis user that may not publish can do everything else.
local MEMORY_CHANNEL = 'libra:memory'

local function publish_memory(node)
  redis.pcall('PUBLISH', MEMORY_CHANNEL, node.name)
end

-- close_node appends an intent that names the pods whose balances the call has changed, those in
-- which something lapsed, and the one in node.woken. A ranked Begin gets its own event when there
-- is no intent; otherwise the intent names its pod.
local function close_node(node)
  local pods, ranked, borrows_memory = nil, node.ranked, false
  if node.moved then
    pods = {node.woken}
    for pod, by in pairs(node.moved) do
      borrows_memory = borrows_memory or by[MEMORY] ~= 0
      if pod ~= node.woken and (by[LAPSED] > 0 or changes(by)) then
        pods[#pods + 1] = pod
        if ranked and pod == ranked.pod then
          ranked = nil
        end
      end
    end
  elseif node.woken then
    pods = {node.woken}
  end
  if pods and pods[1] then
    if ranked and ranked.pod ~= node.woken then
      pods[#pods + 1] = ranked.pod
    end
    append_intent(node, table.concat(pods, '\n'))
  elseif ranked then
    append_ranked(node, ranked)
  end
  if borrows_memory then
    publish_memory(node)
  end
  if node.touched then
    note_change(node)
  end
  node.busy = false
end
