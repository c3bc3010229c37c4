package swap

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// Knative Serving 1.N is the Go module 0.(N+27), whose code Libra's activator is built from.
func TestTheKnativeThatItIsBuiltOfIsSupported(t *testing.T) {
	module, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s*knative\.dev/serving v0\.(\d+)\.`).FindSubmatch(module)
	if found == nil {
		t.Fatal("go.mod does not name knative.dev/serving")
	}
	minor, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("1.%d", minor-27); Supported.String() != want {
		t.Errorf("it is %s, and %v is supported", want, Supported)
	}
}
