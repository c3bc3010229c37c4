package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api/v1alpha1"
)

const couchdb = `
- default:
  - workers:
    - set:
- couchdb_query:
  - controller: DBZoneCtl
    workers:
    - wrk: DB_worker1
    topology_tolerance: same
  followup: fail
`

func run(t *testing.T, stdin string, args ...string) (out string, err error) {
	t.Helper()
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	var stdout bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&bytes.Buffer{})
	err = cmd.ExecuteContext(context.Background())
	return stdout.String(), err
}

func TestConvert(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(file, []byte(couchdb), 0o600); err != nil {
		t.Fatal(err)
	}
	want := `apiVersion: libra.dev/v1alpha1
kind: PlacementPolicy
metadata:
  name: default
  namespace: shop
spec:
  blocks:
  - workers:
    - set: {}
---
# Tag couchdb_query: functions name this policy with the label libra.dev/placement: couchdb-query.
apiVersion: libra.dev/v1alpha1
kind: PlacementPolicy
metadata:
  name: couchdb-query
  namespace: shop
spec:
  blocks:
  - controller:
      topologyTolerance: same
      zone: eu-west-1a
    workers:
    - set:
        matchLabels:
          libra.dev/worker: DB_worker1
  followup: fail
`
	args := []string{"-n", "shop", "--zone", "DBZoneCtl=eu-west-1a"}
	for name, with := range map[string]struct {
		stdin string
		args  []string
	}{
		"a file":             {"", append([]string{"convert", file}, args...)},
		"the standard input": {couchdb, append([]string{"convert"}, args...)},
		"a dash":             {couchdb, append([]string{"convert", "-"}, args...)},
	} {
		got, err := run(t, with.stdin, with.args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want, +got):\n%s", name, diff)
		}
	}
	// The manifests are valid PlacementPolicies.
	for _, document := range strings.Split(want, "---\n") {
		if err := yaml.UnmarshalStrict([]byte(document), &v1alpha1.PlacementPolicy{}); err != nil {
			t.Error(err)
		}
	}
}

func TestConvertGoesByItsFlags(t *testing.T) {
	got, err := run(t, "- a: [{workers: [{wrk: worker-1}, {set: local}]}]", "convert", "--cluster", "--node-names", "--set-label", "example.com/pool")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: ClusterPlacementPolicy", "node: worker-1", "example.com/pool: local"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%swant %q in it", got, want)
		}
	}
}

func TestConvertSaysWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"- a", nil, "the standard input:\nline 1: a tag is \"a\""},
		{"", []string{"/none.yaml"}, "/none.yaml"},
		{"", []string{"a", "b"}, "at most 1 arg"},
		{couchdb, []string{"--cluster", "-n", "shop"}, "--namespace"},
		{couchdb, []string{"-n", "Shop"}, "--namespace"},
		{couchdb, []string{"--worker-label", "a b"}, "--worker-label"},
		{couchdb, []string{"--set-label", ""}, "--set-label"},
		{couchdb, []string{"--zone", "x"}, "--zone"},
		{strings.Repeat("#", maxScript+1), nil, "want at most"},
	} {
		_, err := run(t, tc.stdin, append([]string{"convert"}, tc.args...)...)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want an error with %q", tc.args, err, tc.want)
		}
	}
}

func TestHelpNamesEveryFlagsDefault(t *testing.T) {
	got, err := run(t, "", "convert", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--namespace", "--cluster", "--worker-label", "--set-label", "--node-names", "--zone", "libra.dev/worker=", "kubectl apply"} {
		if !strings.Contains(got, want) {
			t.Errorf("the help does not tell of %s:\n%s", want, got)
		}
	}
}
