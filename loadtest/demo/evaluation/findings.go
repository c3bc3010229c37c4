package evaluation

func (d Data) findings(c Comparison) []string { return nil }
