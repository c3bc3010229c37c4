package pool

// Tests that compare the pool in Redis with package pooltest are of package pool_test, because
// that package imports this one. Here is what they use of this package and of its other tests.

const MaxName = maxName

var (
	NewTestRedis = newRedis
	OpenNode     = openNode
)
