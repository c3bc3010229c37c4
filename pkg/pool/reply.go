package pool

import (
	"fmt"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
)

// items reads a reply of the Redis functions from its start, and keeps the first
// error.
type items struct {
	left []any
	read int
	err  error
}

func next[T any](i *items) (value T) {
	if i.err != nil {
		return value
	}
	if len(i.left) == 0 {
		i.err = fmt.Errorf("the reply ends after %d items", i.read)
		return value
	}
	value, ok := i.left[0].(T)
	if !ok {
		i.err = fmt.Errorf("item %d of the reply is %v, not a %T", i.read, i.left[0], value)
	}
	i.left = i.left[1:]
	i.read++
	return value
}

// each reads a list of lists.
func (i *items) each(read func(*items)) {
	for _, list := range next[[]any](i) {
		of, ok := list.([]any)
		if !ok && i.err == nil {
			i.err = fmt.Errorf("an item of the reply is %v, not a list", list)
		}
		sub := items{left: of, err: i.err}
		read(&sub)
		i.err = sub.err
	}
}

func (i *items) resources() api.Resources {
	return api.Resources{CPUMilli: next[int64](i), MemoryBytes: next[int64](i)}
}

func (i *items) duration() time.Duration { return time.Duration(next[int64](i)) * time.Millisecond }

// names reads a list of names and sorts it.
func (i *items) names() (names []string) {
	for _, name := range next[[]any](i) {
		names = append(names, fmt.Sprint(name))
	}
	slices.Sort(names)
	return names
}

// parseState reads the reply of the function read.
func parseState(reply []any) (State, error) {
	i := &items{left: reply}
	s := State{
		Epoch: next[string](i), Agent: next[string](i), Open: next[int64](i) == 1,
		Begun: int(next[int64](i)), Available: i.resources(),
		Pods: make(map[string]Balance), InFlight: make(map[string][]Flight), Needs: make(map[string]int64),
	}
	i.each(func(of *items) {
		s.Pods[next[string](of)] = Balance{
			Borrowed: of.resources(), Lent: of.resources(), Allocation: of.resources(), Trace: next[string](of), Short: next[int64](of),
			Idle: next[int64](of) == 1,
		}
	})
	i.each(func(of *items) {
		s.Suspended = append(s.Suspended, Suspension{Function: next[string](of), Idle: next[int64](of) == 1, Until: time.UnixMilli(next[int64](of))})
	})
	i.each(func(of *items) {
		pod := next[string](of)
		for of.err == nil && len(of.left) > 0 {
			s.InFlight[pod] = append(s.InFlight[pod], Flight{ID: next[string](of), Age: of.duration(), CPUTime: of.duration()})
		}
	})
	s.Now = time.UnixMilli(next[int64](i))
	i.each(func(of *items) { s.Needs[next[string](of)] = next[int64](of) })
	s.Unseen, s.Raised = i.names(), i.names()
	slices.SortFunc(s.Suspended, Suspension.Compare)
	return s, i.err
}
