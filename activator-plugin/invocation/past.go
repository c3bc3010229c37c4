package invocation

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"math"
	"math/bits"
	"net/http"
	"sync"
	"time"

	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/report"
)

const (
	// pastSizes is the number of classes of input sizes: unknown, empty, and then each up to twice as large as the one
	// before. The last has all sizes from half a TiB.
	pastSizes = 42
	// pastLeast is how many requests of a class make a past. pastMost is how many the mean reflects at most, so that it
	// follows what is still observed.
	pastLeast, pastMost = 20, 1000
)

// past is how long requests of a function took while it was only observed, by the size of their input. The mean of the
// logarithms stands for a typical request: one that hung changes it little.
type past struct {
	asked  int64 // when a count was last made with it, in calls of pastOf
	mu     sync.Mutex
	bySize [pastSizes]struct {
		n    int32
		mean float32 // of the binary logarithm of nanoseconds
	}
}

// pastKey is the same for revisions of a function that differ only in labels and annotations, such as the mode.
type pastKey struct {
	function string
	spec     uint64
}

func pastKeyOf(rev *v1.Revision) pastKey {
	spec := fnv.New64a()
	_ = json.NewEncoder(spec).Encode(rev.Spec) // it came as JSON
	for _, c := range rev.Status.ContainerStatuses {
		_, _ = spec.Write([]byte(c.ImageDigest)) // a tag in the spec does not say which image it is
	}
	return pastKey{cmp.Or(configurationOf(rev), rev.Namespace+"/"+rev.Name), spec.Sum64()}
}

func sizeClass(size int64) int {
	if size == api.UnknownSize {
		return 0
	}
	return min(1+bits.Len64(uint64(size)), pastSizes-1)
}

func (p *past) add(size int64, log float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.bySize[sizeClass(size)]
	s.n = min(s.n+1, pastMost)
	s.mean += (float32(log) - s.mean) / float32(s.n)
}

// of returns the mean for requests of about this size. known is false while there are too few.
func (p *past) of(size int64) (log float64, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.bySize[sizeClass(size)]
	return float64(s.mean), s.n >= pastLeast
}

// typical reports whether the time that a request took in its pod can be compared with that of others: neither a start,
// a failure nor its client decided it.
func (req *request) typical() bool {
	switch req.seen.why {
	case reasonColdStart, reasonFirst, reasonUpgrade, reasonCopy, reasonTooMany:
		return false
	}
	return req.kept.Mode != "" && !req.abandoned && !req.response.failed() && req.response.status < http.StatusBadRequest
}

// took compares how long a request ran in its pod with how long those like it took in the past. A request that was only
// observed becomes part of that past.
func (n *count) took(req *request, ran time.Duration) {
	if n == nil || !req.typical() {
		return
	}
	log := math.Log2(float64(max(ran, 1)))
	if req.kept.Mode == api.ModeObserve {
		n.past.add(req.size, log)
		return
	}
	if before, known := n.past.of(req.size); known {
		n.sums[report.Compared].Add(1)
		n.sums[report.LogTime].Add(int64(log * report.LogUnit))
		n.sums[report.LogTimeBefore].Add(int64(before * report.LogUnit))
	}
}
