package evaluation

// worth shows Libra without some of its parts, over Libra with them.
func (c *comparison) worth() []section {
	t := table{Caption: "Libra without some of its parts, over Libra with them (95 % interval)", Head: []string{
		"load", "policy", "over", p99Computing.title, meanSlowdown.title, p50Short.title, bystanderP95.title, bystanderCPU.title}}
	for _, part := range []string{PartAblations, PartBystanders} {
		for _, k := range c.of(part) {
			for _, arm := range c.armsOf(k) {
				base := c.base(arm)
				if base == "" || len(c.common(k, arm, base)) == 0 {
					continue
				}
				row := []string{k.String(), c.title(arm), c.title(base)}
				for _, f := range []figure{p99Computing, meanSlowdown, p50Short, bystanderP95, bystanderCPU} {
					row = append(row, c.ratio(k, arm, base, f).marked(f))
				}
				t.add(row...)
			}
		}
	}
	return unlessEmpty(section{Title: "What each part of Libra is worth", brief: true, Tables: []table{t}, Text: []string{
		"Above 1 means slower, or more CPU, without that part. Libra had learned from other sizes than those sent here, so its predictions are wrong, and the worth of what corrects them shows. A question mark says that the interval is too wide to rely on the ratio.",
	}})
}

// base returns the arm that an ablation or a placement is compared with;
// empty for others.
func (c *comparison) base(arm string) string {
	for _, a := range c.Arms {
		if a.Name == arm {
			return a.Base
		}
	}
	return ""
}
