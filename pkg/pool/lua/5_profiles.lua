
-- A profile is what can be had of a node, now and in time to come, as who places requests has it
-- (LIBRA, section 6). It is made when somebody asks, and kept until the node is touched, so that of a
-- node on which nothing happens it costs nothing, nor does another who asks.
local MOST_STEPS = 16

-- Numbers as they travel, by how many.
local formats = {}

local function pack_numbers(numbers)
  local n = #numbers
  local format = formats[n]
  if not format then
    format = '<' .. string.rep('d', n)
    formats[n] = format
  end
  return struct.pack(format, unpack(numbers))
end

-- Of more moments than MOST_STEPS, in order, the last of each of so many groups stands for all of
-- it. Of what there is less and less of, all of a group is there until its last; of what there is more
-- and more of, from its last on. So a profile never says more than there is.
local function groups_of(n)
  return math.min(n, MOST_STEPS)
end

local function last_of(group, groups, n)
  return math.floor(group * n / groups)
end

-- add_freed adds what those that are ranked leave of CPU as they are predicted to end: of each moment,
-- how much they have left by then. One that has outlived its prediction may go on for long.
local function add_freed(numbers, node)
  local ends, freed = {}, {}
  if node.rate > 0 then
    for _, inv in pairs(node.begun) do
      if inv.cpu_time and inv.rate > 0 and inv.expires > node.now then
        if not freed[inv.expires] then
          ends[#ends + 1], freed[inv.expires] = inv.expires, 0
        end
        freed[inv.expires] = freed[inv.expires] + inv.rate
      end
    end
  end
  table.sort(ends)
  local sum, groups, n = 0, groups_of(#ends), #numbers + 1
  numbers[n] = groups
  local group = 1
  for i, at in ipairs(ends) do
    sum = sum + freed[at]
    if i == last_of(group, groups, #ends) then
      numbers[n + 1], numbers[n + 2] = at, sum
      group, n = group + 1, n + 2
    end
  end
end

-- add_domain adds what is in the pool of a domain, what is wanted there and not lent, and what lasts
-- how long: of each moment, the latest first, what can be borrowed until then. That it is never more
-- than may be lent on the node is of all domains together.
local function add_domain(numbers, node, domain, room_cpu, room_memory)
  local at, cpus, memories, n = {}, {}, {}, 0
  local cpu, memory = 0, 0
  for _, donor in ipairs(domain.donors) do
    if donor.expires <= node.now then
      break
    end
    local spare = donor.spare
    if spare[CPU] > 0 or spare[MEMORY] > 0 then
      -- What comes after that is not for as long, and no more may be lent.
      if (cpu < room_cpu or memory < room_memory) and at[n] ~= donor.expires then
        n = n + 1
        at[n] = donor.expires
      end
      cpu, memory = cpu + spare[CPU], memory + spare[MEMORY]
      if at[n] == donor.expires then
        cpus[n], memories[n] = math.min(cpu, room_cpu), math.min(memory, room_memory)
      end
    end
  end
  local lacks_cpu, lacks_memory = 0, 0
  for _, inv in ipairs(domain.borrowers) do
    lacks_cpu = lacks_cpu + math.max(inv.want[CPU] - inv.borrowed[CPU], 0)
    lacks_memory = lacks_memory + math.max(inv.want[MEMORY] - inv.borrowed[MEMORY], 0)
  end
  local k = #numbers
  numbers[k + 1], numbers[k + 2], numbers[k + 3], numbers[k + 4] = cpu, memory, lacks_cpu, lacks_memory
  local groups = groups_of(n)
  numbers[k + 5], k = groups, k + 5
  for group = 1, groups do
    local i = last_of(group, groups, n)
    numbers[k + 1], numbers[k + 2], numbers[k + 3] = at[i], cpus[i], memories[i]
    k = k + 3
  end
end

-- profile_of returns the names of the domains in which there is something in the pool or wanted, and
-- all numbers. Whether the node lends is as of the last heartbeat: to ask for the keys of several nodes
-- would be one call for each in a cluster.
local function profile_of(node)
  local profile = node.profile
  if profile then
    return profile
  end
  local opened = node.whole and not node.was_shared
  local numbers = {
    node.beat_at or 0, opened and 1 or 0, node.begun_count,
    node.capacity[CPU], node.capacity[MEMORY], node.idle[CPU], node.idle[MEMORY],
    node.unused_then + node.rate_then - node.rate,
  }
  add_freed(numbers, node)
  local room_cpu = opened and math.max(node.lendable[CPU] - node.on_loan[CPU], 0) or 0
  local room_memory = opened and math.max(node.lendable[MEMORY] - node.on_loan[MEMORY], 0) or 0
  local names = {}
  for name, domain in pairs(node.domains) do
    names[#names + 1] = name
    add_domain(numbers, node, domain, room_cpu, room_memory)
  end
  profile = {table.concat(names, '\n'), pack_numbers(numbers)}
  node.profile = profile
  return profile
end

-- profiles returns, of the nodes that have changed since the last time, those that did so first, so
-- many at most: which library says so and the last change that it tells of, as they are to be given the
-- next time, whether there are more, the time, and of each node its name and its profile.
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

-- It takes no key, and looks at none: one call tells of all nodes that this Redis has.
redis.register_function{
  function_name = 'libra' .. VERSION .. '_profiles',
  flags = {'no-writes', 'allow-oom'},
  callback = function(_, args)
    return profiles(args[1], struct.unpack('<ddd', args[2]))
  end,
}
