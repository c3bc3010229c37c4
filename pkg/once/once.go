// Package once keeps what is found again and again from being said each time.
package once

import "sync"

// Most is how many keys a Set remembers. Past it all are forgotten, and said once more.
const Most = 4096

// Set is of what has been said. Its zero value is empty. It is for concurrent use.
type Set[K comparable] struct {
	mu   sync.Mutex
	said map[K]struct{}
}

// First says whether this is the first time that key is to be said.
func (s *Set[K]) First(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.said[key]; ok {
		return false
	}
	if s.said == nil || len(s.said) >= Most {
		s.said = map[K]struct{}{}
	}
	s.said[key] = struct{}{}
	return true
}
