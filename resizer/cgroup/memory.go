package cgroup

// heldMemory reads how much memory a container holds, beyond what can be reclaimed at once.
type heldMemory struct {
	reads    int
	inactive int64 // bytes
	limit    int64 // bytes, as read last; 0 is none
}

// read returns the bytes in the file charged less those in the file stat, where they have a name.
func (m *heldMemory) read(f *files, charged, stat int, name string) (int64, error) {
	memory, err := f.int(charged)
	if err != nil {
		return 0, err
	}
	if m.reads%statEvery == 0 || m.limit > 0 && 3*memory > 2*m.limit && m.reads%statNearEvery == 0 {
		if m.inactive, err = f.longKeyed(stat, name); err != nil {
			return 0, err
		}
	}
	m.reads++
	return max(0, memory-m.inactive), nil
}
