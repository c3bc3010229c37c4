package reports

import "context"

// Round is what Start does every ten seconds, for tests that move the clock themselves.
func (w *Writer) Round(ctx context.Context) error { return w.round(ctx) }
