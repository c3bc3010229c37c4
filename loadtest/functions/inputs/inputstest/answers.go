// Package inputstest checks functions with the inputs that are made for them.
package inputstest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/functions/inputs"
)

// Check has work answer the first count inputs of the function, and fails the test
// unless each answer says what is expected.
func Check(t *testing.T, function string, count uint64, work func(ctx context.Context, body []byte) (any, error)) {
	t.Helper()
	for n := range count {
		in, err := inputs.Draw(function, 1, n)
		if err != nil {
			t.Fatal(err)
		}
		if len(in.Expect) == 0 {
			t.Fatalf("input %d of %s expects nothing of the answer", n, function)
		}
		did, err := work(t.Context(), in.Body)
		if err != nil {
			t.Fatalf("input %d of %s: %v", n, function, err)
		}
		if diff := cmp.Diff(in.Expect, inputs.Said(did, in.Expect)); diff != "" {
			t.Errorf("input %d of %s (-expected +said):\n%s", n, function, diff)
		}
	}
}
