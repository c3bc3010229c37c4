package kubectl

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/check"
)

// run runs a command as it is typed after `kubectl libra`.
func run(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	streams, _, stdout, _ := genericiooptions.NewTestIOStreams()
	root := NewRoot(streams)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), err
}

func TestCheckThatCannotLookExitsWithTwo(t *testing.T) {
	kubeconfig := "--kubeconfig=" + filepath.Join(t.TempDir(), "none")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an argument":           {[]string{"shop"}, "shop"},
		"an unknown flag":       {[]string{"--fix"}, "--fix"},
		"an unknown format":     {[]string{"-o", "xml"}, `--output is "xml", want one of table, wide, json, yaml`},
		"no time":               {[]string{"--timeout", "0s"}, "--timeout is 0s"},
		"nobody there":          {[]string{"--server", "http://127.0.0.1:1"}, "http://127.0.0.1:1"},
		"no such configuration": {[]string{kubeconfig}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append([]string{"check"}, tc.args...)...)
			if ExitCode(err) != exitNotChecked || err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
				t.Errorf("check %q exits with %d and %v, and prints %q, want %d and an error with %q", tc.args, ExitCode(err), err, out, exitNotChecked, tc.want)
			}
		})
	}
}

// Without time to wait the activator would be replaced, and put back at once.
func TestChangesThatHaveNoTimeAreRefused(t *testing.T) {
	for _, args := range [][]string{{"activator", "install", "--image", "x"}, {"activator", "remove"}, {"uninstall"}} {
		if _, err := run(t, append(args, "--timeout", "0s", "--server", "http://127.0.0.1:1")...); err == nil || !strings.Contains(err.Error(), "--timeout is 0s") {
			t.Errorf("%v without time ends with %v", args, err)
		}
	}
}

// The value is kubectl's, or none, as it was first.
func TestClientDryRun(t *testing.T) {
	for args, want := range map[string]bool{"": false, "--dry-run": true, "--dry-run=client": true, "--dry-run=true": true, "--dry-run=none": false} {
		var is bool
		cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return nil }}
		addClientDryRun(cmd, &is)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err != nil || is != want {
			t.Errorf("With %q it is a dry run: %t (%v), want %t", args, is, err, want)
		}
	}
	if _, err := run(t, "uninstall", "--dry-run=server"); err == nil || !strings.Contains(err.Error(), `"server" for "--dry-run" flag: want none or client`) {
		t.Errorf("uninstall --dry-run=server ends with %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	for want, err := range []error{nil, errors.New("other"), notChecked(errors.New("not"))} {
		if got := ExitCode(err); got != want {
			t.Errorf("%v exits with %d, want %d", err, got, want)
		}
	}
}

// If the flag had a default, client-go would not use the account of the pod that it runs in.
func TestNoDefaultOfAFlagIsAConfiguration(t *testing.T) {
	root := NewRoot(genericiooptions.IOStreams{})
	if is := root.PersistentFlags().Lookup("request-timeout").DefValue; is != "0" {
		t.Errorf("--request-timeout is %s, want 0", is)
	}
}

var sample = checkReport{Installed: true, Findings: []check.Finding{
	{Severity: check.Error, Check: "settings", Object: check.Object{Kind: "configmap", Namespace: "libra-system", Name: "config-libra"}, Message: "refused:\nmode", Remedy: "kubectl edit <x> && true"},
	{Severity: check.Warning, Check: "agents", Object: check.Object{Kind: "node", Name: "a"}, Message: "no ready agent", Remedy: "kubectl describe"},
	{Severity: check.Warning, Check: "agents", Object: check.Object{Kind: "node", Name: "b"}, Message: "no ready agent", Remedy: "kubectl describe"},
	{Severity: check.OK, Check: "kubernetes-version", Object: check.Object{Kind: "cluster"}, Message: "it is v1.35"},
}}

func TestCheckPrints(t *testing.T) {
	const below = `
Commands to run, or lines to add:

# settings, configmap libra-system/config-libra
kubectl edit <x> && true

# agents, node a; agents, node b
kubectl describe

Libra is installed: 1 error, 2 warnings, 1 ok
`
	for format, want := range map[string]string{
		"table": `SEVERITY  CHECK     OBJECT                               FINDING
error     settings  configmap libra-system/config-libra  refused: mode
warning   agents    node a                               no ready agent
warning   agents    node b                               no ready agent
` + below,
		"wide": `SEVERITY  CHECK               OBJECT                               FINDING
error     settings            configmap libra-system/config-libra  refused: mode
warning   agents              node a                               no ready agent
warning   agents              node b                               no ready agent
ok        kubernetes-version  cluster                              it is v1.35
` + below,
	} {
		var got bytes.Buffer
		if err := (checkFlags{output: output{format}}).print(&got, sample); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("-o %s (-want, +got):\n%s", format, diff)
		}
	}
	for format, parse := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(text []byte, into any) error { return yaml.UnmarshalStrict(text, into) },
	} {
		var text bytes.Buffer
		if err := (checkFlags{output: output{format}}).print(&text, sample); err != nil {
			t.Error(err)
		}
		var got checkReport
		if err := parse(text.Bytes(), &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(sample, got); diff != "" || !strings.Contains(text.String(), "<x> && true") {
			t.Errorf("-o %s (-want, +got):\n%s\n%s", format, diff, text.String())
		}
	}
}

func TestCheckOfAnEmptyCluster(t *testing.T) {
	config := apiservertest.Start(t)
	out, err := run(t, "check", "--kubeconfig", apiservertest.Kubeconfig(t, config), "-A", "-o", "json")
	if ExitCode(err) != exitFound {
		t.Fatalf("it exits with %d, %v, want %d", ExitCode(err), err, exitFound)
	}
	var report checkReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if report.Installed {
		t.Error("Libra is installed")
	}
	for _, f := range report.Findings {
		if f.Message == "" || f.Severity == check.Error && f.Check != "knative-version" || strings.Contains(f.Message, "may not") {
			t.Errorf("%+v", f)
		}
	}
	if n := report.count(check.Error); n != 4 {
		t.Errorf("%d errors, want one for each part of Knative", n)
	}
}
