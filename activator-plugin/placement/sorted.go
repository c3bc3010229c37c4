package placement

import "math/bits"

// list is pods of a revision, those with a free slot first, with their candidates in the same order.
type list struct {
	number     int // the index in the pods' at
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

// first moves a pod of the list to the front, if it has a free slot.
func (l *list) first(p *pod) {
	if at := p.at[l.number]; 0 < at && at < l.free {
		l.swap(0, at)
	}
}

// empty removes all pods.
func (l *list) empty() {
	for _, p := range l.pods {
		p.at[l.number] = notMine
	}
	clear(l.pods)
	clear(l.candidates)
	l.pods, l.candidates, l.free = l.pods[:0], l.candidates[:0], 0
}

// A revision keeps lists for mostSorters programs, and mostSorted lists in all. A revision with a PlacementPolicy
// has that policy's program and perhaps the default's, which ask for few lists.
const (
	mostSorters = 2
	mostSorted  = 6
)

// Sorter is a program that says which workers a candidate belongs to, as bits. Its answer is always the same for
// candidates on one node.
type Sorter interface {
	WorkersOf(c *Candidate) uint64
}

// Sorted is a request's candidates by the workers that they belong to. It is kept from one request to the next, so
// that the program need not look through the candidates.
type Sorted struct {
	by       Sorter
	number   int // the index in the pods' workers
	revision *Revision
	free     [64]int // how many candidates each worker has
	any      uint64
	lists    []sortedList
}

type sortedList struct {
	workers uint64
	*list   // the revision's mine, if all of it belongs to the workers
}

// Sorted returns nil if nothing is kept about the candidates.
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

// count takes in that a pod got a free slot, or lost its last one.
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

// Any returns the workers that have a candidate.
func (s *Sorted) Any() uint64 { return s.any }

// Of returns the candidates that belong to any of the workers. Knative's pick comes first if it is one. kept is
// false if too many lists are kept already.
func (s *Sorted) Of(workers uint64) (candidates []Candidate, kept bool) {
	l := s.listOf(workers)
	if l == nil {
		return nil, false
	}
	l.first(s.revision.mine.pods[0])
	return l.candidates[:l.free], true
}

// Index returns where one of the workers' candidates is among all candidates.
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

// unsort drops what is kept for programs.
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
