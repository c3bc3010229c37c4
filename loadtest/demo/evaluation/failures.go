package evaluation

// failure is a request that was not answered, or not answered right.
type failure struct {
	Block
	Request
	service bool // of a bystander
}

// failures returns all failures, in the order in which the blocks were measured.
func (c *comparison) failures() []failure {
	var failed []failure
	for _, b := range c.Blocks {
		for _, r := range b.Requests {
			if r.Error != "" {
				failed = append(failed, failure{Block: b, Request: r})
			}
		}
		if b.Bystander == nil {
			continue
		}
		for _, r := range b.Bystander.Requests {
			if r.Error != "" {
				failed = append(failed, failure{b, r, true})
			}
		}
	}
	return failed
}

// failedOutsideMemory returns how many requests failed in other parts than memory: there,
// failures are the result.
func (c *comparison) failedOutsideMemory() int {
	n := 0
	for _, f := range c.failures() {
		if f.Part != PartMemory {
			n++
		}
	}
	return n
}

func (c *comparison) failedOf(k combination, arm string) int {
	n := 0
	for _, b := range c.blocks[k][arm] {
		for _, r := range b.Requests {
			if r.Error != "" {
				n++
			}
		}
	}
	return n
}
