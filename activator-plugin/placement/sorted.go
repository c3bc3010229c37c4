package placement

import "math/bits"

// list is pods of a revision, those with a free slot first, and the same as candidates.
type list struct {
	number     int // of the pods' at
	pods       []*pod
	candidates []Candidate
	free       int
}

func (l *list) add(p *pod, c Candidate, hasRoom bool) {
	p.at[l.number] = len(l.pods)
	l.pods, l.candidates = append(l.pods, p), append(l.candidates, c)
	l.count(p, hasRoom)
}

// count takes in how many requests a pod of the list has.
func (l *list) count(p *pod, hasRoom bool) {
	at := p.at[l.number]
	l.candidates[at].InFlight = p.inFlight
	switch isFree := at < l.free; {
	case hasRoom && !isFree:
		l.swap(at, l.free)
		l.free++
	case !hasRoom && isFree:
		l.free--
		l.swap(at, l.free)
	}
}

func (l *list) swap(i, j int) {
	l.pods[i], l.pods[j] = l.pods[j], l.pods[i]
	l.candidates[i], l.candidates[j] = l.candidates[j], l.candidates[i]
	l.pods[i].at[l.number], l.pods[j].at[l.number] = i, j
}

// first has a pod of the list be the first, if it has a free slot.
func (l *list) first(p *pod) {
	if at := p.at[l.number]; 0 < at && at < l.free {
		l.swap(0, at)
	}
}

// empty forgets the pods.
func (l *list) empty() {
	for _, p := range l.pods {
		p.at[l.number] = notMine
	}
	clear(l.pods)
	clear(l.candidates)
	l.pods, l.candidates, l.free = l.pods[:0], l.candidates[:0], 0
}

// A revision keeps lists of what mostSorters programs asked for, and so many of all of them. One that a
// PlacementPolicy is for has its program, and perhaps that of the default, and they ask for few.
const (
	mostSorters = 2
	mostSorted  = 6
)

// Sorter is a program that says of which workers a candidate is, as bits. It always says the same of those on one
// node.
type Sorter interface {
	WorkersOf(c *Candidate) uint64
}

// Sorted is the candidates of a request by the workers that they are of. It is kept from one request to the next, so
// that who asks has nothing to look through.
type Sorted struct {
	by       Sorter
	number   int // of the pods' workers
	revision *Revision
	free     [64]int // how many candidates each worker has
	any      uint64
	lists    []sortedList
}

type sortedList struct {
	workers uint64
	*list   // all of the revision's, if all are of the workers
}

// Sorted is nil where nothing is kept of the candidates.
func (q *Query) Sorted(by Sorter) *Sorted {
	r := q.keeps
	if r == nil {
		return nil
	}
	for _, s := range r.sorted {
		if s.by == by {
			return s
		}
	}
	if len(r.sorted) == mostSorters {
		r.unsort()
	}
	s := &Sorted{by: by, number: len(r.sorted), revision: r}
	r.sorted = append(r.sorted, s)
	for i, p := range r.mine.pods {
		p.workers[s.number] = by.WorkersOf(&r.mine.candidates[i])
		if i < r.mine.free {
			s.count(p, 1)
		}
	}
	return s
}

// count takes in that a pod has a free slot, or none any more.
func (s *Sorted) count(p *pod, more int) {
	for workers := p.workers[s.number]; workers != 0; workers &= workers - 1 {
		i := bits.TrailingZeros64(workers)
		s.free[i] += more
		if s.free[i] > 0 {
			s.any |= 1 << i
		} else {
			s.any &^= 1 << i
		}
	}
}

// Any are the workers that have a candidate.
func (s *Sorted) Any() uint64 { return s.any }

// Of are the candidates that are of any of the workers, the first of which is Knative's pick if it is one. They
// are not kept where too much is.
func (s *Sorted) Of(workers uint64) (candidates []Candidate, kept bool) {
	l := s.listOf(workers)
	if l == nil {
		return nil, false
	}
	l.first(s.revision.mine.pods[0])
	return l.candidates[:l.free], true
}

// Index is where one of the workers' candidates is among all.
func (s *Sorted) Index(workers uint64, i int) int {
	return s.listOf(workers).pods[i].at[s.revision.mine.number]
}

func (s *Sorted) listOf(workers uint64) *list {
	for i := range s.lists {
		if s.lists[i].workers == workers {
			return s.lists[i].list
		}
	}
	r, of := s.revision, &s.revision.mine
	all := true
	for _, p := range of.pods {
		all = all && p.workers[s.number]&workers != 0
	}
	if !all {
		if r.kept == mostSorted {
			return nil
		}
		r.kept++
		of = &list{number: r.kept}
		for i, p := range r.mine.pods {
			if p.workers[s.number]&workers != 0 {
				of.add(p, r.mine.candidates[i], i < r.mine.free)
			}
		}
	}
	s.lists = append(s.lists, sortedList{workers, of})
	return of
}

// unsort forgets what was kept for programs.
func (r *Revision) unsort() {
	for _, s := range r.sorted {
		for _, l := range s.lists {
			if l.list != &r.mine {
				l.empty()
			}
		}
	}
	clear(r.sorted)
	r.sorted, r.kept = r.sorted[:0], 0
}
