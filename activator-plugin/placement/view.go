package placement

// View is a node's pool, as functions of one domain see it.
type View struct{}
