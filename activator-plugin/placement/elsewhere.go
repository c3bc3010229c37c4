package placement

// elsewhere asks the program about all pods that have a free slot here, including those of other activators.
// When the program allows none of this activator's, the program overrides which activator has which pods. Nor
// is a request refused only because a pod could not be reached a while ago.
func (r *Revision) elsewhere(c Choice, ask Ask) Choice {
	doubts := !r.doubted.IsZero()
	i := r.placeInAny(&c, ask.Program, r.trusted, doubts)
	if i < 0 && doubts {
		i = r.placeInAny(&c, ask.Program, r.hasRoom, false)
	}
	if i < 0 {
		c.Dest, c.Outcome = "", Refused
		return c
	}
	c.Dest, c.Outcome = r.some[i].Dest, Moved
	return r.take(c, r.these[i])
}

// placeInAny asks the program to choose among the pods for which of is true. It returns the pod's index in
// r.these, or -1.
func (r *Revision) placeInAny(c *Choice, program Program, of func(*pod) bool, others bool) (i int) {
	r.find(of)
	c.Candidates, r.query.Others = len(r.some), others
	if len(r.some) == 0 {
		return -1
	}
	i, c.Block = program.Place(&r.query, r.some)
	return i
}

// find collects the pods for which of is true, including those of other activators.
func (r *Revision) find(of func(*pod) bool) {
	r.some, r.these = r.some[:0], r.these[:0]
	for _, p := range r.all {
		if of(p) {
			r.some, r.these = append(r.some, r.candidate(p)), append(r.these, p)
		}
	}
}
