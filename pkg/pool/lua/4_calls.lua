
-- The safeguard's strikes against a function's donors in flight, or against its idle ones: how many,
-- and until when they lend no CPU. Neither says anything of the other: a prediction was wrong, or an
-- idle pod uses more than its last invocation stated. Strikes that suspend for longer than any strike
-- can are from before the clock went back.
local function forgotten(strikes, now, most_ms)
  return strikes.count == 0 or strikes.till + most_ms <= now or now + most_ms < strikes.till
end

local function suspended_till(node, struck, func, most_ms)
  local strikes = struck[func]
  if strikes and strikes.till > node.now and not forgotten(strikes, node.now, most_ms) then
    return strikes.till
  end
  return 0
end

local function strike(node, struck, func, least_ms, most_ms)
  local strikes = struck[func]
  if not strikes or forgotten(strikes, node.now, most_ms) then
    strikes = {count = 0, till = 0}
    struck[func] = strikes
  end
  strikes.till = node.now + math.min(least_ms * 2 ^ math.min(strikes.count, 10), most_ms)
  strikes.count = strikes.count + 1
end

-- spared returns how much of an invocation's surplus its pod may lend.
local function spared(node, pod, func, cpu, memory, most_ms)
  if cpu + memory == 0 or not (node.floors[pod] and is_open(node)) then
    return NOTHING
  end
  return volume(suspended_till(node, node.struck, func, most_ms) == 0 and cpu or 0, memory)
end

-- idles says whether the pod of an invocation that ends goes on lending.
local function idles(node, inv, late, most_ms)
  return not late and inv.idle_cpu > 0 and node.floors[inv.pod] and suspended_till(node, node.struck_idle, inv.func, most_ms) == 0
    and is_open(node)
end

-- An invocation whose need is not known needs its whole allocation.
local function needed(cpu, memory, allocation)
  return volume(cpu > 0 and cpu or allocation[CPU], memory > 0 and memory or allocation[MEMORY])
end

-- The record of an end is in three parts: the Begin's and the End's, as Go wrote them, and the
-- pool's. The reader joins them.
local function finish(node, id, ending, late, answered, computes_in, most_ms)
  local inv = node.begun[id]
  if computes_in ~= '' then
    note_computing(node, inv and inv.pod or computes_in, node.now)
    late = true
  end
  if not inv then
    local here = node.in_pod[computes_in]
    if here and settle(node, here) and is_open(node) then
      feed_domain(node, here.domain)
    end
    bury(node, id)
    return {0, 0, 0, 0, 0, 0, 0}
  end
  local lends_in = node.in_pod[inv.pod].domain -- differs once an invocation of another domain has begun there
  if release(node, inv, false, answered, idles(node, inv, late, most_ms)) and is_open(node) then
    if lends_in == inv.domain then
      feed_domain(node, lends_in)
    else
      feed(node, {[inv.domain] = true, [lends_in] = true})
    end
  end
  -- By the time a late End arrives, another invocation may have run in the pod.
  local alone, safeguarded = inv.alone and not late, inv.safeguarded
  local lent, borrowed = inv.most_lent, inv.most_borrowed
  append_ended(node, inv.record, ending, string.format(
    '"alone":%s,"safeguarded":%s,"lent":{"cpu_milli":%d,"memory_bytes":%d},"borrowed":{"cpu_milli":%d,"memory_bytes":%d}}',
    tostring(alone), tostring(safeguarded), lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY]))
  return {1, alone and 1 or 0, safeguarded and 1 or 0, lent[CPU], lent[MEMORY], borrowed[CPU], borrowed[MEMORY]}
end

local function end_one(node, args, late, answered, most_ms)
  return finish(node, args[2], args[3], late == 1, answered == 1, args[4], most_ms)
end

-- short_of_memory returns how much memory an invocation wants that nobody lends it. The agent must
-- hear of it: the node may have memory that no donor leaves.
local function short_of_memory(inv)
  return math.max(inv.want[MEMORY] - inv.borrowed[MEMORY], 0)
end

-- The rank of an invocation that is not to be ranked. Any other rank is the predicted CPU time in
-- milliseconds, or 0 when that is not known.
local UNRANKED = -1

local function begin(node, args, every_ms, most_ms, duration_ms, least_ms, cpu, memory, surplus_cpu, surplus_memory,
                     want_cpu, want_memory, concurrency, need_cpu, need_memory, rank, others, number, idle_cpu, want_most, without_ms, rate)
  local owner, id, pod, domain, func, record = args[2], args[3], args[4], args[5], args[6], args[7]
  local now, renewed = node.now, node.leases[owner]
  if renewed and renewed + node.lease_ms <= now then
    lapse(node, {[owner] = true})
    renewed = nil
  end
  if is_buried(node, id) then
    return NOTHING
  end
  local inv = node.begun[id]
  if inv then
    return inv.borrowed
  end
  -- Renew a lease that would not last until its owner's next Renew.
  if not renewed or now - renewed >= every_ms or now < renewed then
    mark(node)
    node.leases[owner] = now
  end

  inv = {
    id = id, pod = pod, domain = domain, owner = owner, func = func, record = record,
    expires = now + duration_ms, without_loan = now + without_ms, least_remaining = math.max(least_ms, 1),
    allocation = volume(cpu, memory), want = volume(want_cpu, want_memory), want_most = want_most,
    surplus = spared(node, pod, func, surplus_cpu, surplus_memory, most_ms),
    concurrency = concurrency, need = NOTHING, number = number, idle_cpu = idle_cpu,
    alone = true, safeguarded = false, most_lent = NOTHING, -- most_lent is its pod's
    borrowed = NOTHING, most_borrowed = NOTHING, donors = NOTHING,
  }
  if concurrency > 1 then
    inv.need = needed(need_cpu, need_memory, inv.allocation)
  end
  node.begun[id] = inv
  node.begun_count = node.begun_count + 1
  if rank ~= UNRANKED then
    inv.cpu_time, inv.begun_at, inv.rate = rank, now, rate
    node.rate = node.rate + inv.rate
    node.ranked = inv
  end
  local moved = join_pod(node, inv, others)
  if inv.want ~= NOTHING then
    list(node, 'borrowers', inv)
  end
  if (moved or inv.want ~= NOTHING) and is_open(node) then
    if inv.want ~= NOTHING then
      take(node, inv, CPU)
      take(node, inv, MEMORY)
    end
    if moved then
      feed_domain(node, domain)
    end
  end
  if short_of_memory(inv) > 0 then
    node.woken = pod
  end
  if args[8] and args[8] ~= '' then
    trace(node, inv, args[8])
  end
  return inv.borrowed
end

-- begin_after ends invocations before it begins one. Each End has three arguments after the
-- Begin's, whose trace may be empty: the ID; the End's part of the record; and in one string,
-- whether it is late, whether its Begins were answered, and the pod in which it may go on
-- computing. The reply is the Begin's and then each End's, in one row.
local ENDINGS_FROM = 9

local function begin_after(node, args, every_ms, most_ms, ...)
  local outcomes = {}
  for i = ENDINGS_FROM, #args, 3 do
    local late, answered, computes_in = string.match(args[i + 2], '^([01])([01])(.*)$')
    outcomes[#outcomes + 1] = finish(node, args[i], args[i + 1], late == '1', answered == '1', computes_in, most_ms)
  end
  local borrowed = begin(node, args, every_ms, most_ms, ...)
  local reply = {borrowed[CPU], borrowed[MEMORY]}
  for _, outcome in ipairs(outcomes) do
    for _, n in ipairs(outcome) do
      reply[#reply + 1] = n
    end
  end
  return reply
end

local function renew(node, args)
  local owner = args[2]
  mark(node)
  lapse(node, {[owner] = true})
  node.leases[owner] = node.now
  return redis.status_reply('OK')
end

-- withdraw ends all loans to and from a pod, and takes what it put in out of the pool.
local function withdraw(node, here)
  if here.idle then
    drop_pod(node, here)
    return
  end
  forfeit(node, here, CPU)
  forfeit(node, here, MEMORY)
  for _, inv in ipairs(here) do
    give_back(node, inv)
  end
end

-- take_part takes in which pods take part: the text has a line for each pod and one for its floor.
-- It ends the loans that other pods, and those whose floor has risen, may no longer have.
local function take_part(node, text)
  node.pods_text, node.floors = text, {}
  for pod, floor in string.gmatch(text, '([^\n]+)\n([^\n]+)') do
    node.floors[pod] = tonumber(floor)
  end
  for pod, here in pairs(node.in_pod) do
    if not node.floors[pod] then
      withdraw(node, here)
    end
  end
  for _, here in pairs(node.in_pod) do
    local room = lendable(node, here, MEMORY) - here.lent[MEMORY]
    if room < 0 then
      forfeit(node, here, MEMORY)
    elseif here.spare[MEMORY] > room then
      here.spare[MEMORY] = room
    end
  end
end

-- forget_returned keeps only the pods that borrow now as raised: the agent has had time to lower
-- the others.
local function forget_returned(node)
  if not next(node.raised) then
    return
  end
  node.raised = {}
  for _, inv in pairs(node.begun) do
    if inv.borrowed[CPU] > 0 then
      node.raised[inv.pod] = true
    end
  end
end

-- A node with less than one part in BUSY_PART of its CPU idle has none left over: invocations in
-- flight wait for what they do not get.
local BUSY_PART = 10

-- note_use takes in how much of the node's CPU was unused over the last second. On a busy node,
-- invocations that wait for CPU get it first.
local function note_use(node, cpu, memory, idle_cpu, idle_memory)
  node.capacity, node.idle = {cpu, memory}, {idle_cpu, idle_memory}
  local waits = idle_cpu < math.floor(cpu / BUSY_PART) and math.max(node.rate - (cpu - idle_cpu), 0) or 0
  node.rate_then, node.unused_then = node.rate, idle_cpu - waits
end

local function heartbeat(node, args, whole, cpu, memory, rested_at, ...)
  local agent, epoch, text, needs, rested = args[2], args[3], args[4], args[5], args[6]
  local forgotten_needs = not node.heard and needs ~= ''
  node.whole = whole == 1 and epoch == node.epoch
  local heard_at = math.min(node.beat_at or 0, node.now) -- the clock may have gone back
  if told_others(node, math.max(heard_at - 2 * MARK_EVERY_MS, node.now - UNSEEN_MOST_MS) + 1) then
    node.was_whole, node.unsure_at = false, node.now
  end
  node.beat_at, node.agent, node.lendable = node.now, agent, {cpu, memory}
  note_use(node, ...)
  local shared = is_shared(node)
  node.was_shared = shared
  node.heard, node.open = true, node.whole and not shared
  if text ~= node.pods_text then
    take_part(node, text)
  end
  if shared then
    for _, here in pairs(node.in_pod) do
      withdraw(node, here)
    end
  end
  if node.whole and not node.was_whole then
    -- Invocations that began before the epoch, or that another version was told of, may still run in them.
    for pod in pairs(node.floors) do
      note_computing(node, pod, node.unsure_at)
      if node.in_pod[pod] then
        settle(node, node.in_pod[pod])
      end
    end
    node.was_whole = true
  end
  lapse_unseen(node)
  if epoch == node.epoch and rested_at <= node.now then -- or the clock has gone back
    for pod in string.gmatch(rested, '[^\n]+') do
      rest(node, pod, rested_at)
    end
  end
  if needs ~= node.needs_text or forgotten_needs then
    node.needs_text = needs
    publish_memory(node)
  end
  if is_open(node) then
    even_out(node)
  end
  feed(node, node.domains)
  forget_returned(node)
  return is_open(node) and 1 or 0
end

local function safeguard(node, args, least_ms, most_ms, seen_idle)
  local pod = args[2]
  local here = node.in_pod[pod]
  if not here or here.spare[CPU] + here.lent[CPU] == 0 or (here.idle ~= nil) ~= (seen_idle == 1) then
    return 0
  end
  local domain, revoked = here.domain, here.lent[CPU]
  for _, inv in ipairs(here) do
    inv.safeguarded = true
  end
  if here.idle then
    strike(node, node.struck_idle, here.idle.func, least_ms, most_ms)
    drop_pod(node, here)
  else
    strike(node, node.struck, here[1].func, least_ms, most_ms)
    forfeit(node, here, CPU)
  end
  node.woken = pod
  feed(node, {[domain] = true})
  return revoked
end

-- ask makes the invocations in a pod want the given CPU together, each as much as it may, in the
-- order of their Begins.
local function ask(node, args, milli)
  local here = node.in_pod[args[2]]
  if not here or here.idle then
    return 0
  end
  local domains = {} -- invocations that began before an edit of their domain may be in another
  for _, inv in ipairs(here) do
    domains[inv.domain] = true
    local was, is = inv.want, volume(math.min(milli, inv.want_most), inv.want[MEMORY])
    milli = milli - is[CPU]
    if was == NOTHING and is ~= NOTHING then
      list(node, 'borrowers', inv)
    end
    inv.want = is
    if inv.borrowed[CPU] > is[CPU] then
      shrink(node, inv, CPU, inv.borrowed[CPU] - is[CPU])
    end
    if was ~= NOTHING and is == NOTHING then
      unlist(node, 'borrowers', inv)
    end
  end
  feed(node, domains)
  return 0
end

-- reap ends what owners have whose leases have expired, and forgets strikes and unseen invocations
-- that no longer count.
local function reap(node, most_ms)
  for owner, renewed in pairs(node.leases) do
    if renewed > node.now then
      -- The clock went back: without this, the lease would last longer by as much.
      node.leases[owner] = node.now
    end
  end
  lapse(node, node.leases)
  for _, struck in ipairs({node.struck, node.struck_idle}) do
    for func, strikes in pairs(struck) do
      if forgotten(strikes, node.now, most_ms) then
        struck[func] = nil
      end
    end
  end
  for pod, by_owner in pairs(node.unseen) do
    for owner, u in pairs(by_owner) do
      if unseen_forgotten(u, node.now) then
        set_unseen(node, pod, owner, nil)
      end
    end
  end
end

local function add(balance, index, v)
  balance[index], balance[index + 1] = balance[index] + v[CPU], balance[index + 1] + v[MEMORY]
end

-- survey returns what pods could lend now, the pods' balances, and the ranked invocations in each
-- pod: the ID, the time in flight and the CPU time of each.
local function survey(node)
  local available, balances, in_flight = {0, 0}, {}, {}
  for pod, here in pairs(node.in_pod) do
    if here.expires > node.now then
      add(available, 1, here.spare)
    end
    local b, ranked, short = {pod, 0, 0, here.lent[CPU], here.lent[MEMORY]}, nil, 0
    for _, inv in ipairs(here) do
      add(b, 2, inv.borrowed)
      short = short + short_of_memory(inv)
      if inv.cpu_time then
        if not ranked then
          ranked = {pod}
          in_flight[#in_flight + 1] = ranked
        end
        local n = #ranked
        -- The clock may have gone back.
        ranked[n + 1], ranked[n + 2], ranked[n + 3] = inv.id, math.max(node.now - inv.begun_at, 0), inv.cpu_time
      end
    end
    if b[2] + b[3] + b[4] + b[5] + short > 0 then
      local allocation = (here.idle or here[#here]).allocation
      b[6], b[7], b[8], b[9], b[10] = allocation[CPU], allocation[MEMORY], '', short, here.idle and 1 or 0
      balances[#balances + 1] = b
    end
  end
  return available, balances, in_flight
end

local function suspensions(node, most_ms)
  local list = {}
  for idle, struck in pairs({[0] = node.struck, [1] = node.struck_idle}) do
    for func in pairs(struck) do
      local till = suspended_till(node, struck, func, most_ms)
      if till > 0 then
        list[#list + 1] = {func, idle, till}
      end
    end
  end
  return list
end

-- unseen_pods returns the pods in which lapsed invocations may still run.
local function unseen_pods(node)
  local list = {}
  for pod, by_owner in pairs(node.unseen) do
    for _, u in pairs(by_owner) do
      if u.till ~= 0 and not unseen_forgotten(u, node.now) then
        list[#list + 1] = pod
        break
      end
    end
  end
  return list
end

local function raised_pods(node)
  local list = {}
  for pod in pairs(node.raised) do
    list[#list + 1] = pod
  end
  return list
end

-- needs returns the needs of the last heartbeat, as long as it counts.
local function needs(node)
  local list = {}
  if node.heard then
    for pod, bytes in string.gmatch(node.needs_text, '([^\n]+)\n([^\n]+)') do
      list[#list + 1] = {pod, tonumber(bytes)}
    end
  end
  return list
end

local function read(node, _, most_ms)
  reap(node, most_ms)
  forget_marks(node)
  local available, balances, in_flight = survey(node)
  add_traces(node, balances)
  return {
    node.epoch, node.heard and node.agent or '', is_open(node) and 1 or 0,
    node.begun_count, available[CPU], available[MEMORY],
    balances, suspensions(node, most_ms), in_flight, node.now, needs(node), unseen_pods(node), raised_pods(node),
  }
end

-- register adds a function to the library. format is that of its numbers, which come packed: as
-- text with spaces between, an invocation took 1.25 times (1.11 to 1.41) as much CPU. A function
-- that touches a node may change its profile; the others do so only where something has lapsed.
local function register(name, flags, touches, format, callback)
  local function call_with(first_key, args, lease_ms, now, ...)
    local node = open_node(first_key, lease_ms, now)
    node.touched = touches
    local reply = callback(node, args, ...)
    close_node(node)
    return reply
  end
  redis.register_function{
    function_name = 'libra' .. VERSION .. '_' .. name,
    flags = flags,
    callback = function(keys, args)
      return call_with(keys[1], args, struct.unpack(format, args[1]))
    end,
  }
end

-- Functions that only give back must also work when Redis is out of memory. So must those that keep
-- alive: without a heartbeat, the resizer takes a live agent for dead, and without its lease, an
-- owner loses all that it has begun.
register('begin', {}, true, '<dddddddddddddddddddddd', begin)
register('end', {'allow-oom'}, true, '<ddddd', end_one)
register('begin_after', {}, true, '<dddddddddddddddddddddd', begin_after)
register('renew', {'allow-oom'}, false, '<dd', renew)
register('heartbeat', {'allow-oom'}, true, '<dddddddddd', heartbeat)
register('safeguard', {'allow-oom'}, true, '<ddddd', safeguard)
register('ask', {'allow-oom'}, true, '<ddd', ask)
register('read', {'allow-oom'}, false, '<ddd', read)
