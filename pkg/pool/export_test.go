package pool

// Tests that compare the pool in Redis with package pooltest are in package pool_test, because
// pooltest imports this package. Here is what they use of this package and of its other tests.

const MaxName = maxName

var (
	NewTestRedis = newRedis
	OpenNode     = openNode
)
