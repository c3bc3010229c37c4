
-- A profile is what a node can give now and later, for activators that place requests (LIBRA,
-- section 6). It is made when somebody asks and kept until the node is touched, so a node on which
-- nothing happens costs nothing, and neither does the next reader.
local MOST_STEPS = 16

-- Scratch tables to make a profile in, so that no tables have to grow each time.
local numbers, at, cpus, memories = {}, {}, {}, {}

-- struct formats of packed numbers, by how many there are.
local formats = {}

local function pack_numbers(n)
  local format = formats[n]
  if not format then
    format = '<' .. string.rep('d', n)
    formats[n] = format
  end
  return struct.pack(format, unpack(numbers, 1, n))
end

-- When there are more moments than MOST_STEPS, they are split, in order, into that many groups, and
-- the last moment of each stands for the whole group. A volume that shrinks with time is there in
-- full until that moment; one that grows is there from that moment on. So a profile never says more
-- than there is.
local function groups_of(n)
  return n < MOST_STEPS and n or MOST_STEPS
end

local function last_of(group, groups, n)
  return groups == n and group or math.floor(group * n / groups)
end

-- add_freed adds the CPU that ranked invocations free as they are predicted to end: for each
-- moment, how much they have freed by then. An invocation that has outlived its prediction may go
-- on for long. It returns how many numbers there are now.
local function add_freed(n, node)
  if node.rate == 0 then
    numbers[n + 1] = 0
    return n + 1
  end
  local ends, freed, now = {}, {}, node.now
  for _, inv in pairs(node.begun) do
    local rate, expires = inv.rate, inv.expires
    if rate and rate > 0 and expires > now then
      if not freed[expires] then
        ends[#ends + 1], freed[expires] = expires, 0
      end
      freed[expires] = freed[expires] + rate
    end
  end
  table.sort(ends)
  local sum, group, moments = 0, 1, #ends
  local groups = groups_of(moments)
  numbers[n + 1], n = groups, n + 1
  for i = 1, moments do
    sum = sum + freed[ends[i]]
    if i == last_of(group, groups, moments) then
      numbers[n + 1], numbers[n + 2] = ends[i], sum
      group, n = group + 1, n + 2
    end
  end
  return n
end

-- add_domain adds what a domain has in the pool, what is wanted there and not lent, and for each
-- moment, the latest first, what can be borrowed until then. That is capped by what may be lent on
-- the node, which all domains share. It returns what add_freed does.
local function add_domain(n, node, domain, room_cpu, room_memory)
  local now, donors, borrowers = node.now, domain.donors, domain.borrowers
  local moments, latest, cpu, memory = 0, nil, 0, 0
  for i = 1, #donors do
    local expires, spare = donors[i].expires, donors[i].spare
    if expires <= now then
      break
    end
    local spare_cpu, spare_memory = spare[CPU], spare[MEMORY]
    if spare_cpu > 0 or spare_memory > 0 then
      -- Once the moments so far hold all that may be lent, donors that end sooner add nothing.
      if expires ~= latest and (cpu < room_cpu or memory < room_memory) then
        moments, latest = moments + 1, expires
        at[moments] = expires
      end
      cpu, memory = cpu + spare_cpu, memory + spare_memory
      if expires == latest then
        cpus[moments] = cpu < room_cpu and cpu or room_cpu
        memories[moments] = memory < room_memory and memory or room_memory
      end
    end
  end
  local lacks_cpu, lacks_memory = 0, 0
  for i = 1, #borrowers do
    local want, borrowed = borrowers[i].want, borrowers[i].borrowed
    if want[CPU] > borrowed[CPU] then
      lacks_cpu = lacks_cpu + want[CPU] - borrowed[CPU]
    end
    if want[MEMORY] > borrowed[MEMORY] then
      lacks_memory = lacks_memory + want[MEMORY] - borrowed[MEMORY]
    end
  end
  local groups = groups_of(moments)
  numbers[n + 1], numbers[n + 2], numbers[n + 3], numbers[n + 4], numbers[n + 5] = cpu, memory, lacks_cpu, lacks_memory, groups
  n = n + 5
  for group = 1, groups do
    local i = last_of(group, groups, moments)
    numbers[n + 1], numbers[n + 2], numbers[n + 3] = at[i], cpus[i], memories[i]
    n = n + 3
  end
  return n
end

-- profile_of returns the names of the domains in which something is in the pool or wanted, and all
-- numbers. Whether the node lends is as of the last heartbeat: asking for the keys of several nodes
-- would take one call for each in a cluster.
local function profile_of(node)
  local profile = node.profile
  if profile then
    return profile
  end
  local opened = node.whole and not node.was_shared
  local room_cpu = opened and math.max(node.lendable[CPU] - node.on_loan[CPU], 0) or 0
  local room_memory = opened and math.max(node.lendable[MEMORY] - node.on_loan[MEMORY], 0) or 0
  numbers[1], numbers[2], numbers[3] = node.beat_at or 0, opened and 1 or 0, node.begun_count
  numbers[4], numbers[5], numbers[6], numbers[7] = node.capacity[CPU], node.capacity[MEMORY], node.idle[CPU], node.idle[MEMORY]
  numbers[8] = node.unused_then + node.rate_then - node.rate
  local n, names = add_freed(8, node), ''
  for name, domain in pairs(node.domains) do
    names = names == '' and name or names .. '\n' .. name
    n = add_domain(n, node, domain, room_cpu, room_memory)
  end
  profile = {names, pack_numbers(n)}
  node.profile = profile
  return profile
end

-- profiles returns the nodes that have changed since the caller last asked, the earliest change
-- first, and no more than it asks for. The reply has this library's ID and the last change that it
-- covers, which the caller passes the next time; whether there are more; the time; and for each
-- node, its name and profile.
local function profiles(instance, now, since, most)
  if not library_epoch then
    begin_library()
  end
  if instance ~= library_epoch then
    since = 0
  end
  local node, first = newest, nil
  while node and node.changed > since do
    node, first = node.older, node
  end
  local reply = {library_epoch, since, 0, now == 0 and server_time() or now}
  node = first
  while node and most > 0 do
    local profile, n = profile_of(node), #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = node.name, profile[1], profile[2]
    reply[2], node, most = node.changed, node.newer, most - 1
  end
  reply[3] = node and 1 or 0
  return reply
end

-- profiles takes no key and reads none: one call covers all nodes that this Redis has.
redis.register_function{
  function_name = 'libra' .. VERSION .. '_profiles',
  flags = {'no-writes', 'allow-oom'},
  callback = function(_, args)
    return profiles(args[1], struct.unpack('<ddd', args[2]))
  end,
}
