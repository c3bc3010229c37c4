// Package once keeps a finding that comes up again and again from being reported each
// time.
package once

import "sync"

// Most is how many keys a Set remembers. Beyond it the Set forgets all of them, and they
// count as new again.
const Most = 1 << 16

// Set remembers which keys have been reported. Its zero value is empty. It is safe for
// concurrent use.
type Set[K comparable] struct {
	mu   sync.Mutex
	said map[K]struct{}
}

// First reports whether key is new, and remembers it.
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
