package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"
)

// Events as the API server writes them, without the fields that are not read.
const (
	auditedUpdate = `{"stage":"RequestReceived","requestURI":"/apis/coordination.k8s.io/v1/namespaces/libra-system/leases/libra-resizer?timeout=3s","verb":"update","user":{"username":"system:serviceaccount:libra-system:libra-resizer"},"objectRef":{"resource":"leases","namespace":"libra-system","name":"libra-resizer"},"requestReceivedTimestamp":"2026-01-01T00:00:01.000000Z","stageTimestamp":"2026-01-01T00:00:01.000000Z"}` + "\n"
	auditedAnswer = `{"stage":"ResponseComplete","verb":"update","user":{"username":"system:serviceaccount:libra-system:libra-resizer"},"objectRef":{"resource":"leases"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:01.000000Z","stageTimestamp":"2026-01-01T00:00:01.500000Z"}` + "\n"
	auditedOther  = `{"stage":"RequestReceived","verb":"get","user":{"username":"admin"},"requestReceivedTimestamp":"2026-01-01T00:00:02.000000Z"}` + "\n"
	auditedResize = `{"stage":"RequestReceived","verb":"patch","user":{"username":"system:serviceaccount:libra-system:libra-resizer"},"objectRef":{"resource":"pods","namespace":"team-1","name":"p","subresource":"resize"},"requestReceivedTimestamp":"2026-01-01T00:00:03.000000Z"}` + "\n" +
		`{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:libra-system:libra-resizer"},"objectRef":{"resource":"pods","namespace":"team-1","name":"p","subresource":"resize"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:03.000000Z","stageTimestamp":"2026-01-01T00:00:03.250000Z"}` + "\n"
	auditedRefusal = `{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:libra-system:libra-resizer"},"objectRef":{"resource":"pods","namespace":"team-1","name":"q","subresource":"resize"},"responseStatus":{"code":403},"requestReceivedTimestamp":"2026-01-01T00:00:03.000000Z","stageTimestamp":"2026-01-01T00:00:03.250000Z"}` + "\n"
)

func second(n float64) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n * float64(time.Second)))
}

func TestAudit(t *testing.T) {
	a := &audit{path: filepath.Join(t.TempDir(), "audit.log")}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	if err := a.read(); err != nil {
		t.Fatalf("before anything was logged: %v", err)
	}
	whole := auditedUpdate + auditedAnswer + auditedOther + auditedResize + auditedRefusal
	// The API server may have written half a line at any time.
	for _, length := range []int{10, len(auditedUpdate) + 5, len(whole)} {
		if err := os.WriteFile(a.path, []byte(whole[:length]), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := a.read(); err != nil {
			t.Fatalf("after %d bytes: %v", length, err)
		}
	}

	if got := a.between(second(0), second(10)); got != 2 {
		t.Errorf("%d requests of the controller, want the update and the patch once each", got)
	}
	if got := a.between(second(1), second(3)); got != 1 {
		t.Errorf("%d requests from the first second until before the third, want the update", got)
	}
	if diff := cmp.Diff(map[string]int{"update leases": 1, "patch pods/resize": 1}, a.kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if at, ok := a.resizedAfter("team-1/p", second(3)); !ok || !at.Equal(second(3.25)) {
		t.Errorf("the resize of p was accepted at %v, %t", at, ok)
	}
	for pod, after := range map[string]time.Time{"team-1/p": second(4), "team-1/q": second(0)} {
		if at, ok := a.resizedAfter(pod, after); ok {
			t.Errorf("%s was resized at %v, after %v", pod, at, after)
		}
	}
}

func TestAuditPolicy(t *testing.T) {
	var policy auditv1.Policy
	if err := yaml.UnmarshalStrict([]byte(auditPolicy), &policy); err != nil {
		t.Fatal(err)
	}
	if got := policy.Rules[0].Users; len(got) != 1 || got[0] != controllerUser {
		t.Errorf("the policy is of %v", got)
	}
}
